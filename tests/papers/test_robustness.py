"""The robustness grid: what it writes, and what it says about hand-made figures."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from idiolect import Interrupted
from idiolect.run.run import run
from idiolect.study.many import Trial
from idiolect_papers import EXPERIMENTS
from idiolect_papers.lp_proj import robustness as grid
from idiolect_papers.lp_proj import robustness_pages as robustness
from idiolect_papers.lp_proj.cases import CASES
from idiolect_papers.lp_proj.robustness import (
    Attacked,
    AttackedCell,
    AttackGrid,
    Outcome,
    Tables,
    outcomes,
    read_published,
)
from idiolect_papers.lp_proj.robustness_pages import (
    above,
    breaks,
    differences,
    page,
    unmoved,
    useless,
)
from idiolect_papers.runs import stored_runs

DOCS = Path(__file__).parents[2] / "docs"
TITLE = "Synthetic(0, 0)"
SMALL = AttackGrid(
    5,
    1,
    federations=(TITLE,),
    methods=("Global+Median", "lp-proj-1"),
    attacks=("sign-flip", "gaussian"),
    clients=10,
)
WHOLE = AttackGrid(200, 2)


def found(folder, method, attacks, rounds, jobs=1):
    """What the runs of some cells say: 10 clients, one seed, one or two of them malicious."""
    small = replace(SMALL, rounds=rounds, methods=(method,), attacks=attacks)
    todo = {p: small.setting(p) for p in small.places() if p.share in (0.0, 0.1, 0.2)}
    with stored_runs(folder, "robustness", jobs) as runs:
        return outcomes(runs(todo, small.stock(), range(1), ("by_client",)))


def test_the_grid_writes_page_figures_and_picture(tmp_path, trained):
    paths = robustness.write(tmp_path, SMALL, jobs=1)
    assert [p.name for p in paths] == ["robustness.md", "robustness.json", "robustness.png"]
    assert len(trained) == 2 * (1 + 2 * 4)  # the clean run of a method serves both attacks
    text = paths[0].read_text()
    figures = json.loads(paths[1].read_text())
    assert "## Synthetic(0, 0), sign-flip" in text and "5 rounds,\n1 seed." in text
    rows = figures["tables"]["Synthetic(0, 0)"]
    assert rows["sign-flip"]["lp-proj-1"]["0"] == rows["gaussian"]["lp-proj-1"]["0"]
    assert set(rows["gaussian"]["Global+Median"]) == {"0", "0.1", "0.2", "0.5", "0.8"}
    assert paths[2].read_bytes().startswith(b"\x89PNG")
    assert EXPERIMENTS["robustness"].function == "lp_proj.robustness_pages:write"


def test_interrupted_and_restarted_gives_the_same_tables_and_repeats_nothing(
    tmp_path, trained, monkeypatch
):
    monkeypatch.setattr(robustness, "picture", lambda tables, path: path)
    whole = robustness.write(tmp_path / "whole", SMALL, jobs=1)
    everything = list(trained)
    train = Trial.train
    trained.clear()

    def until_the_seventh(trial):
        if len(trained) == 7:
            raise Interrupted
        return train(trial)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Trial, "train", until_the_seventh)
        robustness.write(tmp_path / "parts", SMALL, jobs=1)
    runs = tmp_path / "parts" / ".robustness" / "runs.jsonl"
    assert len(runs.read_text().splitlines()) == 7
    runs.write_text(runs.read_text() + '{"key": "cut o')  # as a lost machine leaves it
    parts = robustness.write(tmp_path / "parts", SMALL, jobs=1)
    assert trained == everything
    assert [p.read_bytes() for p in parts[:2]] == [p.read_bytes() for p in whole[:2]]
    assert not runs.parent.exists()


def test_a_run_tells_which_clients_were_malicious_and_a_clean_one_how_each_did(tmp_path):
    cells = found(tmp_path, "Global+Median", ["gaussian"], 2)
    (attacked,) = cells[Attacked(TITLE, "Global+Median", "gaussian", 0.2)]
    assert len(attacked.malicious) == 2 and not attacked.by_client
    (clean,) = cells[Attacked(TITLE, "Global+Median")]
    assert not clean.malicious and len(clean.by_client) == 10
    assert clean.collapsed is None and 0 < clean.accuracy < 1


def test_the_cells_of_local_under_attack_are_what_a_run_under_attack_gives(tmp_path):
    small = replace(SMALL, rounds=3)
    stock = small.stock()
    cells = found(tmp_path, "Local", ["sign-flip", "data-poison"], 3)
    for attack in ("sign-flip", "data-poison"):
        place = Attacked(TITLE, "Local", attack, 0.2)
        point = small.setting(place)
        assert point.settings["rounds"] == 0
        settings = point.of_seed(0) | {"rounds": 3, "eval_every": 3}
        task, federation = stock.tasks[TITLE], stock.federation(TITLE)
        summary = run(point.make_method(), task, federation, progress=False, **settings).summary()
        (cell,) = cells[place]
        assert cell.accuracy == pytest.approx(summary["accuracy"]["mean"], abs=1e-6)
        assert cell.variance == pytest.approx(summary["accuracy"]["variance"], abs=1e-6)
        assert len(cell.malicious) == 2


@pytest.mark.slow
def test_two_processes_give_the_results_of_one(tmp_path):
    one, two = (
        found(tmp_path / str(jobs), "Global+Median", ["gaussian"], 5, jobs=jobs) for jobs in (1, 2)
    )
    assert one == two
    for (_, _, _, share), (cell,) in one.items():
        assert len(cell.malicious) == round(10 * share)


@pytest.mark.parametrize(("share", "f"), [(0.0, 0), (0.1, 1), (0.2, 2), (0.5, 3), (0.8, 3)])
def test_krum_is_told_the_expected_malicious_clients_but_no_more_than_it_tolerates(share, f):
    attack = "sign-flip" if share else "none"
    point = WHOLE.setting(Attacked(TITLE, "Global+Krum", attack, share))
    assert point.settings["rule"] == f"krum(f={f})"


def test_mnist_has_few_rounds_and_a_larger_subspace():
    everyone, sampled = (
        WHOLE.setting(Attacked(grid.MNIST, method, "gaussian", 0.1))
        for method in ("lp-proj-1", "Global+Mean")
    )
    assert (everyone.settings["rounds"], sampled.settings["rounds"]) == (3, 60)
    assert everyone.make_method().dim == 50
    full = robustness.SCALES["full"].setting(Attacked(grid.MNIST, "lp-proj-1", "gaussian", 0.1))
    assert full.settings["rounds"] == 200
    assert not robustness.SCALES["quick"].whole
    assert WHOLE.setting(Attacked(TITLE, "lp-proj-1")).make_method().dim == 21


def test_a_cell_over_seeds():
    results = [Outcome(a, v, None, frozenset([0])) for a, v in ((0.8, 0.01), (0.9, 0.03))]
    by_client = ((0.0, 0.7, 0.9), (0.0, 1.0, 1.0))
    clean = [Outcome(0.5, 0.1, None, frozenset(), accuracies) for accuracies in by_client]
    cell = AttackedCell.of(results, clean)
    assert (cell.accuracy, cell.variance) == pytest.approx((0.85, 0.02))
    assert cell.same_clients == pytest.approx(0.9)  # without the malicious client 0
    assert cell.text() == "0.850 ± 0.635 (0.020)"
    collapsed = AttackedCell.of([results[0], replace(results[1], collapsed=40)])
    assert collapsed.text() == "★ round 40 (1 of 2 seeds)"


def made(**rows):
    """Tables of one federation under sign-flip: the accuracies of each method, clean first.

    None: collapsed.
    """
    shares = (0.0, 0.1, 0.2, 0.5, 0.8)
    cell = {None: AttackedCell(0.1, 0.01, collapsed=(20,), by_seed=(0.1,))}
    names = {
        name.replace("_", "-").replace("Global-", "Global+"): values
        for name, values in rows.items()
    }
    made_rows = {
        n: {s: cell.get(a) or AttackedCell(a, 0.01) for s, a in zip(shares, v, strict=True)}
        for n, v in names.items()
    }
    return Tables({("Synthetic(0, 0)", "sign-flip", n): row for n, row in made_rows.items()})


def test_findings_say_yes_where_it_is_so():
    tables = made(
        lp_proj_1=[0.9, 0.9, 0.89, 0.92, 0.88],
        Global_Mean=[0.8, 0.5, 0.3, None, None],
        lp_proj_2=[0.9, 0.9, 0.9, None, None],
    )
    assert "in 4 of 4 attacked cells" in unmoved(tables)
    assert "Synthetic(0, 0): yes, 0.500" in useless(tables)
    assert "Synthetic(0, 0): yes, ★ round 20" in breaks(tables)


def test_findings_say_no_and_where():
    tables = made(
        lp_proj_1=[0.9, 0.9, 0.8, None, 0.9],
        Global_Mean=[0.8, 0.7, 0.3, None, None],
        lp_proj_2=[0.9, 0.9, 0.9, 0.4, None],
    )
    text = unmoved(tables)
    assert (
        "in 2 of 4 (not " in text
        and "sign-flip 20 %: 0.800 against 0.900" in text
        and "sign-flip 50 %: ★ against 0.900" in text
    )
    assert "Synthetic(0, 0): no, 0.700" in useless(tables)
    assert "Synthetic(0, 0): no, 0.400" in breaks(tables)
    assert "not run" in breaks(made(lp_proj_1=[0.9] * 5))


def test_other_benign_clients_do_not_count_as_a_change():
    tables = made(lp_proj_1=[0.9, 0.9, 0.9, 0.9, 0.94])
    row = tables.rows["Synthetic(0, 0)", "sign-flip", "lp-proj-1"]
    row[0.8] = replace(row[0.8], same_clients=0.93)
    assert "in 3 of 4 (not " in unmoved(tables) and unmoved(tables).endswith(
        "the same benign clients in 4 of 4."
    )


def test_local_is_compared_with_lpproj_cell_by_cell_and_the_clean_one_counts_once():
    tables = made(Local=[0.93] * 5, lp_proj_1=[0.9, 0.92, 0.94, None, 0.91])
    assert "in 4 of 5 cells, by 0.0125 on average (-0.0100 to 0.0300)" in above(tables)
    assert "not run" in above(made(lp_proj_1=[0.9] * 5))


def test_a_method_that_is_not_stored_yet_is_added_and_the_others_stay(tmp_path, trained):
    robustness.write(tmp_path, SMALL, jobs=1)
    before = json.loads((tmp_path / "robustness.json").read_text())
    trained.clear()
    wanted = ("Local", *SMALL.methods)
    robustness.write_missing(tmp_path, replace(SMALL, methods=wanted), jobs=1)
    after = json.loads((tmp_path / "robustness.json").read_text())
    assert {trial.split()[0] for trial in trained} == {"Local"}
    for federation, attacks in before["tables"].items():
        for attack, rows in attacks.items():
            new = after["tables"][federation][attack]
            assert list(new) == [*wanted]
            assert all(new[m] == row for m, row in rows.items())
    assert "| Local | " in (tmp_path / "robustness.md").read_text()
    trained.clear()
    other = replace(SMALL, methods=(), federations=("Synthetic(1, 1)",))
    robustness.write_missing(tmp_path, other, jobs=1)
    more = json.loads((tmp_path / "robustness.json").read_text())["tables"]
    assert list(more) == ["Synthetic(0, 0)", "Synthetic(1, 1)"]
    assert more["Synthetic(0, 0)"] == after["tables"]["Synthetic(0, 0)"]
    assert all(list(rows) == list(wanted) for rows in more["Synthetic(1, 1)"].values())
    assert all(trial.endswith("data=Synthetic(1, 1) seed=0") for trial in trained)


def test_differences_from_the_paper_are_listed_and_only_they():
    tables = made(lp_proj_2=[0.9, 0.9, 0.7, None, 0.4])
    published = {
        ("Synthetic(0, 0)", "sign-flip", "lp-proj-2"): [
            (0.887, 0.01),
            (0.885, 0.01),
            (0.884, 0.01),
            None,
            None,
        ]
    }
    assert differences(tables, published) == [
        "Synthetic(0, 0), lp-proj-2: sign-flip 20 % 0.700 / 0.884, sign-flip 80 % 0.400 / ★"
    ]


def test_the_published_tables_are_complete():
    published = read_published()
    assert set(published) == {
        (f, a, m)
        for f in CASES
        for a in grid.ATTACKS
        for m in grid.METHODS
        if m != "Local"  # in the paper's Figure 4 alone
    }
    assert all(len(row) == 5 for row in published.values())
    stars = Counter(f for (f, *_), row in published.items() for cell in row if cell is None)
    assert published["FASHIONMNIST", "gaussian", "lp-proj-1"][-1] == (0.974, 0.002)
    assert published["Synthetic, by volume", "sign-flip", "Global+Krum"][3] == (0.564, 0.122)
    assert stars["Synthetic(0, 0)"] == 8 and stars["MNIST"] == 9  # Ditto in Table 9 too


def test_the_stored_page_is_that_of_the_stored_figures():
    stored = json.loads((DOCS / "robustness.json").read_text())
    sizes = {name: stored["settings"][name] for name in ("rounds", "seeds", "clients")}
    tables = Tables.from_dict(stored["tables"])
    assert stored["settings"]["format"] == robustness.FORMAT
    assert json.loads(json.dumps(tables.as_dict())) == stored["tables"]
    assert (DOCS / "robustness.md").read_text() == page(tables, AttackGrid(**sizes))


def test_tables_stand_beside_the_published_ones(tmp_path):
    some = ("Local", "Ditto", "lp-proj-1", "lp-proj-2", "Global+Mean")
    small = AttackGrid(1, 1, federations=(TITLE,), methods=some, clients=50)
    folder = tmp_path / "reproduced"
    folder.mkdir()
    page, stored, *_ = robustness.write_table(folder, 6, "quick", small, jobs=1)
    cells = json.loads(stored.read_text())["cells"]
    assert len([c for c in cells if c["paper"]]) == 6 * 7 * 5
    run = {c["row"] for c in cells if c["ours"] and c["paper"]}
    assert run == {"Ditto", "Global+Mean", "lp-proj-1", "lp-proj-2"}
    assert "| Local | – |" in page.read_text()
    page, *_ = robustness.write_figure4(folder, "quick", small, jobs=1)
    assert "80 % sign-flipping" in page.read_text()

"""`idiolect predict`, `personalise` and `export`: the models of a finished run at work."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.files import given_folder, given_path, write_atomic
from ...core.knobs import Knobs, SettingError, knob, nearest
from ...core.text import csv_cell, plural, shown
from ...data.federation import Federation
from ...data.read.ids import name_form
from ...data.read.tables import SUFFIXES, TableFile, file_alike
from ...report.console import say
from ...report.tables import results_table
from ...run.predict import Prediction, labels_of
from ...run.result import Result
from ...study.compare import Comparison
from ...study.load import load
from ..options import Parser
from ..output import emit
from ..portable import FORMATS, export_one

if TYPE_CHECKING:
    import pandas as pd


PEFT = "peft"  # the format of a client's adapter without the base
CSV_FILE = "the CSV file to write (default: on stdout)"


@dataclass(frozen=True)
class ModelOptions(Knobs):
    """Which models of a run."""

    best: bool = knob(False, "models of the best round by validation data (of --keep-best)")
    trust: bool = knob(False, "run the user's own code (module:Name) that the directory names")


def _parser(command: str, examples: str = "") -> Parser:
    """What the three commands have in common."""
    parser = Parser(command, "", examples, ModelOptions, ("json",))
    parser.add_argument("run", help="the run's directory")
    parser.add_argument("--seed", type=int, help="the seed whose models (default the first)")
    return parser


def _result(parsed: Any, verb: str) -> Result:
    """The one run that a command is about; `verb` is what is done to it."""
    result = load(given_path(parsed.run, "run"), trust=parsed.options.trust)
    if isinstance(result, Comparison):
        inside = sorted(p for p in Path(parsed.run).iterdir() if (p / "record.json").exists())
        raise SettingError(
            f"run: {parsed.run} is a comparison; {verb} one of the runs inside: "
            + ", ".join(map(str, inside))
        )
    return result


def _table_options(result: Result) -> dict[str, Any]:
    """How the run's own table was read; {} where its data were no table of the command line."""
    origin = result.record.origin
    return dict(origin["data_options"]) if origin and origin.get("data") == "table" else {}


# -- predict ---------------------------------------------------------------------------------------
def predict(argv: list[str]) -> None:
    """Labels and probabilities, or values, for the rows of a table."""
    parser = _parser(
        "predict",
        "For example:\n  idiolect predict runs/mine --client hospital-3 --data rows.csv -o out.csv",
    )
    parser.add_argument("--data", required=True, help=f"the rows: {', '.join(SUFFIXES)}")
    parser.add_argument("--client", help="the client whose model predicts all rows")
    parser.add_argument(
        "--client-column",
        help="the column that names the client of each row, each of which has its own model "
        "(default: that of the training table, if the rows have it)",
    )
    parser.add_argument(
        "--allow-collapsed",
        action="store_true",
        help="predict with models whose training has collapsed too",
    )
    parser.add_argument(
        "--id-column",
        help="the column that names each row, written beside its prediction (default: the first "
        "of texts or whole numbers that no model uses and that differs in every row)",
    )
    parser.add_argument("-o", "--output", dest="file", help=CSV_FILE)
    parsed = parser.parse(argv)
    if parsed.client is not None and parsed.client_column:
        raise SettingError("client: name one client or a column of clients, not both")
    file = csv_path(parsed.file, parsed.data)
    result = _result(parsed, "predict with")
    options = _table_options(result)
    column = parsed.client_column or options.get("client", "client")
    frame = file_alike(parsed.data, column, _cell_options(result) | options).frame()
    owners = _owners(parsed, frame, column)
    if TableFile(**options).merge_names and isinstance(owners, list):
        owners = _spelled_as_trained(owners, result)
    rows = _named_rows(frame, parsed.id_column, column, result)
    rows = rows.drop(columns=[column]) if column in rows.columns else rows
    prediction = result.predict(
        rows,
        owners,
        parsed.seed,
        best=parsed.options.best,
        allow_collapsed=parsed.allow_collapsed,
    )
    show_prediction(prediction, owners, column, file, parsed.output.json)


def _cell_options(result: Result) -> dict[str, Any]:
    """How numbers were written in the training table, of the command line or not."""
    if result.preparation is None:
        return {}
    cells = result.preparation.cells
    return {name: getattr(cells, name) for name in ("decimal", "thousands", "categories")}


def _spelled_as_trained(owners: list[Any], result: Result) -> list[Any]:
    """Client ids as the training table has them: other spellings of a name were one client."""
    clients = result.preparation.clients if result.preparation is not None else ()
    spelling = {name_form(client_id): client_id for client_id in clients}
    return [spelling.get(name_form(owner), owner) for owner in owners]


def csv_path(text: str | None, rows: str) -> Path | None:
    """The file that predictions are written to; not the one of the rows."""
    file = None if text is None else given_path(text, "output")
    if file is not None and file.exists() and file.samefile(given_path(rows, "data")):
        raise SettingError("output: it is the file of the rows; choose another")
    return file


def show_prediction(
    prediction: Prediction, owners: Any, column: str, file: Path | None, as_json: bool
) -> None:
    """Predictions on stdout and in the file; `owners`: a client, or a list of one per row."""
    clients = owners if isinstance(owners, list) else None
    text = prediction_csv(prediction, clients, column)
    if as_json:
        print(json.dumps(_prediction_json(prediction, clients)))
    elif file is None:
        sys.stdout.write(text)
    if file is not None:
        write_atomic(file, text.encode())
        say(f"{plural(len(prediction), 'row')} predicted: {file}")


def _owners(parsed: Any, frame: pd.DataFrame, column: str) -> Any:
    """Whose model predicts: one client for all rows, or a client for each."""
    if parsed.client is not None:
        return parsed.client
    if column not in frame.columns:
        if parsed.client_column:
            raise nearest(column, map(str, frame.columns), "client-column")
        raise SettingError("client: say whose model predicts: --client ID, or --client-column NAME")
    if not parsed.client_column:
        say(
            f"the client of each row is read from the column {column!r}; --client ID says otherwise"
        )
    empty = frame[column].isna()
    if empty.any():
        raise SettingError(f"client-column: row {int(empty.argmax())} has no client in {column!r}")
    return frame[column].tolist()


def _named_rows(
    frame: pd.DataFrame, id_column: str | None, client: str, result: Result
) -> pd.DataFrame:
    """The rows with their names as index, which stays with their predictions."""
    if id_column is not None:
        if id_column not in frame.columns:
            raise nearest(id_column, map(str, frame.columns), "id-column")
        return frame.set_index(id_column, drop=False)
    import pandas as pd

    if result.preparation is None or not isinstance(frame.index, pd.RangeIndex):
        return frame  # every column is an input; or the file has an index of its own
    used = {column.name for column in result.preparation.columns}
    used |= {client, _table_options(result).get("target", "")}
    others = (name for name in frame.columns if name not in used and frame[name].is_unique)
    name = next((name for name in others if not pd.api.types.is_float_dtype(frame[name])), None)
    if name is None:
        return frame
    say(f"rows are named by the column {name!r}; --id-column NAME says otherwise")
    return frame.set_index(name)


def _row_names(prediction: Prediction) -> dict[str, list[Any]]:
    """What names the rows, by column; {} where they are only counted."""
    import pandas as pd

    index = prediction.index
    if index is None or (isinstance(index, pd.RangeIndex) and index.name is None):
        return {}
    levels = range(index.nlevels)
    return {str(index.names[i] or "index"): index.get_level_values(i).tolist() for i in levels}


def _prediction_json(prediction: Prediction, clients: list[Any] | None) -> dict[str, Any]:
    """The same as plain data."""
    out: dict[str, Any] = {} if clients is None else {"clients": [str(c) for c in clients]}
    if names := _row_names(prediction):
        out["ids"] = {
            column: [name if isinstance(name, str | int) else str(name) for name in values]
            for column, values in names.items()
        }
    if prediction.labels is None:
        return {**out, "values": [] if prediction.values is None else prediction.values.tolist()}
    probabilities = None if prediction.probabilities is None else prediction.probabilities.tolist()
    return {
        **out,
        "labels": prediction.labels.tolist(),
        "classes": list(prediction.classes),
        "probabilities": probabilities,
    }


def prediction_csv(
    prediction: Prediction, clients: list[Any] | None = None, column: str = ""
) -> str:
    """A line per row: its name, its client where there are several, and what the model says.

    >>> import numpy as np
    >>> one = Prediction(np.array(["no"]), np.array([[0.75, 0.25]]), None, ("no", "yes"))
    >>> print(prediction_csv(one, ["Bonn"], "site"), end="")
    site,label,probability no,probability yes
    Bonn,no,0.75,0.25
    """
    table = prediction.to_pandas()
    if clients is not None:
        table.insert(0, column, clients, allow_duplicates=True)
    for place, (name, values) in enumerate(_row_names(prediction).items()):
        table.insert(place, name, values, allow_duplicates=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([csv_cell(str(name)) for name in table.columns])
    for row in table.itertuples(index=False, name=None):
        writer.writerow([_cell(value) for value in row])
    return text.getvalue()


def _cell(value: Any) -> Any:
    """A cell; a sign alone ("+", "-") is a label that no spreadsheet takes for a formula."""
    return value if isinstance(value, str) and len(value) == 1 else csv_cell(value)


# -- personalise -----------------------------------------------------------------------------------
def personalise(argv: list[str]) -> None:
    """Models of their own for clients that come after training."""
    parser = _parser("personalise")
    parser.add_argument("--data", required=True, help=f"their rows: {', '.join(SUFFIXES)}")
    parser.add_argument("--client", help="column of client ids (default: as in the training table)")
    parser.add_argument("--target", help="column to predict (default: as in the training table)")
    parser.add_argument(
        "--rounds",
        type=int,
        help="rounds of their own training (default: the run's held_out_rounds)",
    )
    parser.add_argument(
        "--returning",
        action="store_true",
        help="clients of the training may be among them; they start afresh",
    )
    parser.add_argument(
        "-o", "--output", dest="folder", help="for their models (default RUN/personalised)"
    )
    parsed = parser.parse(argv)
    result = _result(parsed, "personalise")
    options = _table_options(result)
    if result.preparation is None or not options:
        raise SettingError(
            f"run: {parsed.run} was not trained on a table from the command line; in Python: "
            "idiolect.load(directory, ...).personalise(federation)"
        )
    federation = _newcomers(parsed, result, options)
    new = result.personalise(
        federation,
        rounds=parsed.rounds,
        seed=parsed.seed,
        returning=parsed.returning,
        best=parsed.options.best,
    )
    folder = given_folder(parsed.folder or str(Path(parsed.run) / "personalised"), "output")
    paths = new.export(folder)
    summary = new.summary()
    title = f"{plural(len(federation.ids), 'client')} after training"
    facts = {**summary, "clients": new.clients_table(), "folder": str(folder)}
    emit(parsed.output.json, facts, results_table([summary], title))
    parsed.output.show_subgroups(new)
    if not parsed.output.json:
        print(shown(f"{plural(len(paths) - 1, 'file')} and {paths[-1].name} in {folder}"))


def _newcomers(parsed: Any, result: Result, options: dict[str, Any]) -> Federation:
    """The table of the new clients, read and prepared as the training table was."""
    roles = {"client": parsed.client, "target": parsed.target}
    options |= {name: value for name, value in roles.items() if value is not None}
    reading = TableFile(**{**options, "path": parsed.data})
    how = {
        name: getattr(reading, name)
        for name in (
            *("client", "target", "split", "kind", "valid", "test", "seed", "group", "time"),
            *("weight", "subgroup", "merge_names", "duplicates"),
        )
    }
    return Federation.from_frame(
        reading.frame(),
        name=Path(parsed.data).stem,
        preparation=result.preparation,
        class_names=labels_of(result.record.data) or None,
        **how,
    )


# -- export ----------------------------------------------------------------------------------------
def export(argv: list[str]) -> None:
    """The clients' own models as files."""
    parser = _parser("export")
    parser.add_argument("-o", "--output", dest="folder", help="folder (default RUN/models)")
    parser.add_argument(
        "--one-file", action="store_true", help="all clients in one file, tensors client/parameter"
    )
    formats = (*FORMATS, PEFT)
    add_format(parser, formats)
    parsed = parser.parse(argv)
    is_single = check_format(parsed, formats)
    if is_single and parsed.client is None:
        raise SettingError(f"client: --format {parsed.format} is of one client: --client ID")
    result = _result(parsed, "export")
    folder = given_folder(parsed.folder or str(Path(parsed.run) / "models"), "output")
    best = parsed.options.best
    if parsed.format == PEFT:
        paths = result.export_adapter(parsed.client, folder, parsed.seed, best)
        text = f"{paths[0].name} and {paths[1].name} in {folder}: for PeftModel.from_pretrained"
    elif is_single:
        paths = export_one(result, parsed.client, parsed.format, folder, parsed.seed, best=best)
        text = f"{paths[0]}: checked against the model; {paths[1].name} says what goes in"
    else:
        paths = result.export(folder, parsed.seed, parsed.one_file, best=best)
        text = f"{plural(len(paths) - 1, 'file')} and {paths[-1].name} in {folder}"
    print(json.dumps([str(p) for p in paths]) if parsed.output.json else shown(text))


def add_format(parser: Parser, formats: Sequence[str] = tuple(FORMATS)) -> None:
    """The flags that say as what a model is exported, and whose."""
    parser.add_argument(
        "--format",
        default="safetensors",
        help=f"safetensors, or of one client: {', '.join(formats)} (default safetensors)",
    )
    parser.add_argument("--client", help="the client whose model, for the other formats")


def check_format(parsed: Any, formats: Sequence[str] = tuple(FORMATS)) -> bool:
    """Whether the format is one that holds the model of a single client."""
    if parsed.format not in ("safetensors", *formats):
        raise nearest(parsed.format, ("safetensors", *formats), "format")
    if parsed.format == "safetensors" and parsed.client is not None:
        raise SettingError(
            f"client: safetensors are of every client; --format {'|'.join(formats)} of one"
        )
    return bool(parsed.format != "safetensors")

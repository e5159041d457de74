"""`idiolect predict`, `personalise` and `export`: the models of a finished run at work."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.files import given_folder, given_path, write_atomic
from ...core.knobs import SettingError, nearest
from ...core.text import csv_cell, shown
from ...data.federation import Federation
from ...data.read.table_files import TableFile
from ...report.console import OUT, say
from ...report.tables import results_table
from ...run.predict import Prediction, labels_of
from ...run.result import Result
from ...study.comparison import Comparison
from ...study.load import load
from ..options import Parser
from ..portable import FORMATS, export_one

if TYPE_CHECKING:
    import pandas as pd


def _parser(command: str, description: str) -> Parser:
    """What the three commands have in common."""
    parser = Parser(command, description)
    parser.add_argument("run", help="the run's directory")
    parser.add_argument("--seed", type=int, help="the seed whose models (default the first)")
    parser.add_argument(
        "--best",
        action="store_true",
        help="models of the best round by validation data (a run with --keep-best)",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run the user's own code (module:Name) that the directory names",
    )
    parser.add_json()
    return parser


def _result(parsed: Any, verb: str) -> Result:
    """The one run that a command is about; `verb` is what is done to it."""
    result = load(given_path(parsed.run, "run"), trust=parsed.trust)
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


def _frame(path: str, client: str) -> pd.DataFrame:
    return TableFile(path=path, client=client).frame()


# -- predict ---------------------------------------------------------------------------------------
def predict(argv: list[str]) -> None:
    """Labels and probabilities, or values, for the rows of a table."""
    parser = _parser("predict", "What clients' own models say of the rows of a table.")
    parser.add_argument("--data", required=True, help="the rows: .csv, .tsv or .parquet")
    parser.add_argument("--client", help="the client whose model predicts all rows")
    parser.add_argument(
        "--client-column",
        help="the column that names the client of each row, each of which has its own model "
        "(default: that of the training table, if the rows have it)",
    )
    parser.add_argument("-o", "--output", help="the CSV file to write (default: on stdout)")
    parser.epilog = (
        "For example:\n  idiolect predict runs/mine --client hospital-3 --data rows.csv -o out.csv"
    )
    parsed = parser.parse(argv)
    if parsed.client is not None and parsed.client_column:
        raise SettingError("client: name one client or a column of clients, not both")
    output = None if parsed.output is None else given_path(parsed.output, "output")
    if output is not None and output.exists() and output.samefile(given_path(parsed.data, "data")):
        raise SettingError("output: it is the file of the rows; choose another")
    result = _result(parsed, "predict with")
    column = parsed.client_column or _table_options(result).get("client", "client")
    frame = _frame(parsed.data, column)
    owners = _owners(parsed, frame, column)
    rows = frame.drop(columns=[column]) if column in frame.columns else frame
    prediction = result.predict(rows, owners, parsed.seed, best=parsed.best)
    named = owners if isinstance(owners, list) else None
    if parsed.json:
        print(json.dumps(prediction_json(prediction, named)))
    elif output is None:
        sys.stdout.write(prediction_csv(prediction, named, column))
    if output is not None:
        write_atomic(output, prediction_csv(prediction, named, column).encode())
        say(f"{len(prediction):,} rows predicted: {output}")


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


def prediction_json(prediction: Prediction, clients: list[Any] | None) -> dict[str, Any]:
    """The same as plain data."""
    out: dict[str, Any] = {}
    if clients is not None:
        out["clients"] = [str(c) for c in clients]
    if prediction.labels is None:
        return {
            **out,
            "values": prediction.values.tolist() if prediction.values is not None else [],
        }
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
    """A line per row: its client where there are several, and what the model says.

    >>> import numpy as np
    >>> one = Prediction(np.array(["no"]), np.array([[0.75, 0.25]]), None, ("no", "yes"))
    >>> print(prediction_csv(one, ["Bonn"], "site"), end="")
    site,label,probability no,probability yes
    Bonn,no,0.75,0.25
    """
    table = prediction.to_pandas()
    if clients is not None:
        table.insert(0, column, clients, allow_duplicates=True)
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
    parser = _parser(
        "personalise", "Models of their own for clients that come after training, from a table."
    )
    parser.add_argument("--data", required=True, help="their rows: .csv, .tsv or .parquet")
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
        help="clients of the training may be among them; they begin anew",
    )
    parser.add_argument("-o", "--output", help="folder for their models (default RUN/personalised)")
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
        best=parsed.best,
    )
    folder = given_folder(parsed.output or str(Path(parsed.run) / "personalised"), "output")
    paths = new.export(folder)
    summary = new.summary()
    if parsed.json:
        print(json.dumps({**summary, "clients": new.clients_table(), "folder": str(folder)}))
        return
    title = f"{len(federation.ids):,} clients after training"
    OUT.print(results_table([summary], title, OUT.width))
    print(shown(f"{len(paths) - 1} files and {paths[-1].name} in {folder}"))


def _newcomers(parsed: Any, result: Result, options: dict[str, Any]) -> Federation:
    """The table of the new clients, read and prepared as the training table was."""
    roles = {"client": parsed.client, "target": parsed.target}
    options |= {name: value for name, value in roles.items() if value is not None}
    reading = TableFile(**{**options, "path": parsed.data})
    how = {
        name: getattr(reading, name)
        for name in ("client", "target", "split", "kind", "valid", "test", "seed")
    }
    return Federation.from_frame(
        reading.frame(),
        name=Path(parsed.data).stem,
        preparation=result.preparation,
        class_names=labels_of(result.record.data) or None,
        **{**how, "split": how["split"] or None},
    )


# -- export ----------------------------------------------------------------------------------------
def export(argv: list[str]) -> None:
    """The clients' own models as files."""
    parser = _parser(
        "export",
        "Every client's own model as safetensors, or one client's as ONNX, TorchScript or pt2.",
    )
    parser.add_argument("-o", "--output", help="folder for the files (default RUN/models)")
    parser.add_argument(
        "--one-file", action="store_true", help="all clients in one file, tensors client/parameter"
    )
    parser.add_argument(
        "--format",
        default="safetensors",
        help=f"safetensors, or of one client: {', '.join(FORMATS)} (default safetensors)",
    )
    parser.add_argument("--client", help="the client whose model, for the other formats")
    parsed = parser.parse(argv)
    if parsed.format not in ("safetensors", *FORMATS):
        raise nearest(parsed.format, ("safetensors", *FORMATS), "format")
    one = parsed.format != "safetensors"
    if one == (parsed.client is None):
        raise SettingError(
            f"client: --format {parsed.format} is of one client: --client ID"
            if one
            else f"client: safetensors are of every client; --format {'|'.join(FORMATS)} of one"
        )
    result = _result(parsed, "export")
    folder = given_folder(parsed.output or str(Path(parsed.run) / "models"), "output")
    if one:
        paths = export_one(
            result, parsed.client, parsed.format, folder, parsed.seed, best=parsed.best
        )
    else:
        paths = result.export(folder, parsed.seed, parsed.one_file, best=parsed.best)
    if parsed.json:
        print(json.dumps([str(p) for p in paths]))
    elif one:
        print(shown(f"{paths[0]}: checked against the model; {paths[1].name} says what goes in"))
    else:
        print(shown(f"{len(paths) - 1} files and {paths[-1].name} in {folder}"))

"""The record of a run directory, which anybody may have written."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from ..core.files import check_regular, read_json_object
from ..core.knobs import SettingError
from ..core.paths import resume_command
from .record import Record


def read_record(path: Path) -> Record:
    """The record of a run directory."""
    if not (path / "record.json").exists():
        begun = (path / "settings.json").exists()
        text = (
            f"the run in {path} is not finished; continue it with: {resume_command(path)}"
            if begun
            else f"{path} holds no run (record.json is missing)"
        )
        raise SettingError(f"directory: {text}")
    try:
        record = Record.from_dict(read_json_object(path / "record.json"))
        if (path / "record.safetensors").exists():
            _read_arrays(record, path / "record.safetensors")
    except SettingError as error:
        text = str(error).removeprefix("record: ").removeprefix("directory: ")
        raise SettingError(f"directory: cannot use {path / 'record.json'}: {text}") from None
    return record


def _read_arrays(record: Record, path: Path) -> None:
    """The accuracies of clients in every evaluated round, as many as the record has."""
    try:
        check_regular(path)
        with safe_open(path, framework="np") as file:
            for s in record.seeds:
                shape = [len(s.history), len(s.clients)] if s.history else [0, 0]
                found = file.get_slice(f"seed-{s.seed}")
                if found.get_dtype() != "F32" or found.get_shape() != shape:
                    raise ValueError(f"seed-{s.seed} is not float32 of shape {shape}")
                s.by_client = file.get_tensor(f"seed-{s.seed}")
    except (OSError, ValueError, SafetensorError) as error:
        raise SettingError(f"{path.name} beside it: {error}") from None

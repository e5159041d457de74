"""A sweep of the past: what its directory holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.files import resume_command
from ...core.knobs import SettingError
from ..many import records
from .rows import merged
from .sweep import RUNS


def read_sweep(directory: Path) -> list[dict[str, Any]]:
    """A summary per setting, means over the seeds that are done, in the order of their ends."""
    by_setting: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for record in records(directory / RUNS):
        digest, _, *kept = record["key"].split("-")
        label = str(record["job"]).rpartition(" seed=")[0]
        by_setting.setdefault((label, digest, *kept), []).append(record["result"])
    if not by_setting:
        raise SettingError(
            f"directory: no run of the sweep in {directory} has ended yet; "
            f"go on with it: {resume_command(directory)}"
        )
    try:
        return [merged(label, found) for (label, *_), found in by_setting.items()]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise SettingError(
            f"directory: cannot use {directory / RUNS}: a run in it has no {error}"
        ) from None

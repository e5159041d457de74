"""What a run is: everything that must be the same when it is resumed."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..core.knobs import SettingError
from ..data.federation import Federation
from ..method import Method
from ..methods import name_of
from ..task.task import Task
from .directory import FORMAT
from .session import Start
from .settings import Settings, fixed_on_resume


def identity_of(
    method: Method,
    task: Task,
    federation: Federation,
    settings: Settings,
    origin: dict[str, Any] | None = None,
    start: dict[int, Start] | None = None,
) -> dict[str, Any]:
    """Method, settings, data and model as plain data: the content of settings.json."""
    layout = task.layout
    parameters = [[n, list(s)] for n, s in zip(layout.names, layout.shapes, strict=True)]
    given = "made anew for each seed"
    if isinstance(task.model, nn.Module):
        given = hashlib.sha256(task.x0.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
    identity: dict[str, Any] = {
        "format": FORMAT,
        "method": {"name": name_of(method), **method.as_dict()},
        "run": settings.as_dict(),
        "data": {
            "name": federation.name,
            "clients": federation.clients,
            "sha256": federation.fingerprint(),
        },
        "model": {
            "module": type(task.module).__name__,
            "loss": task.criterion.name,
            "parameters": parameters,
            "weights": given,
        },
        "origin": origin or {},
    }
    if start:
        identity["start"] = {str(seed): s.sha256() for seed, s in start.items()}
    return identity


def run_number(identity: dict[str, Any], seed: int) -> int:
    """32 bits that identify a seed of a run on the wire."""
    method = sorted(identity["method"].items())
    return zlib.crc32(repr((method, identity["data"], seed)).encode())


def check_same(saved: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Refuse to resume a run with anything that changes its result."""
    if saved.get("format") != FORMAT:
        raise SettingError(
            f"resume: {path} has format {saved.get('format')!r}, "
            "made by another version of idiolect; "
            f"this version continues runs of format {FORMAT}. "
            "Finish it with the version that began it (environment.json names it), or run it anew"
        )
    for part in ("method", "run", "data", "model", "start"):
        old = saved.get(part) or {}
        new = now.get(part) or {}
        names = fixed_on_resume() if part == "run" else [*new, *(k for k in old if k not in new)]
        changed = [k for k in names if old.get(k) != new.get(k)]
        if changed:
            what = ", ".join(f"{k} was {old.get(k)!r}, is {new.get(k)!r}" for k in changed)
            raise SettingError(
                f"resume: {path} was made with another {part}: {what}; "
                "only the same settings continue a run"
            )

"""Restore a seed from its checkpoint, with its data or without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.documents import expect, expect_fields
from ..core.knobs import SettingError
from ..core.types import Id
from ..data.federation import SPLITS, Census, Federation
from . import checkpoint
from .checkpoint import Bound, Checkpoint, CheckpointError
from .identity import digest
from .record import Record
from .session import Session
from .settings import Settings


def bound_of(identity: dict[str, Any], session: Session) -> Bound:
    """What a seed's checkpoints are bound to."""
    return Bound(identity["id"], session.seed, digest(identity), session.contract.checksum)


def restore(
    session: Session,
    folder: Path,
    identity: dict[str, Any],
    settings: Settings,
    warn: Callable[[str], None],
) -> Checkpoint:
    """A fresh session as it was saved in the newest sound checkpoint of a folder; that checkpoint.

    A CheckpointError names any that this session cannot have saved.
    """
    most = session.most_bytes(settings.rounds)
    newest = checkpoint.load(folder, bound_of(identity, session), settings.rounds, most, warn)
    with refusing(newest):
        session.load(newest, settings)
    return newest


class refusing:
    """What does not fit this session is a CheckpointError that names the checkpoint."""

    def __init__(self, found: Checkpoint):
        self.found = found

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, (ValueError, KeyError)):
            raise CheckpointError(
                f"checkpoint {self.found.path} is refused: {error}; remove it to go on without"
            ) from None


_COLUMNS: dict[str, Any] = {"client": int | str, **{f"{s}_samples": int for s in SPLITS}}


def absent(record: Record) -> Federation:
    """A federation of the same clients with as many samples, each of them empty."""
    rows = record.seeds[0].clients
    try:
        for row in rows:
            expect_fields({name: row[name] for name in _COLUMNS}, _COLUMNS, place="clients")
            if min(row[f"{s}_samples"] for s in SPLITS) < 0:
                raise ValueError("clients: samples are whole numbers >= 0")
        sizes = {s: torch.tensor([row[f"{s}_samples"] for row in rows]) for s in SPLITS}
    except (KeyError, ValueError, RuntimeError, OverflowError) as error:
        raise SettingError(f"record: it has no usable client table: {error}") from None
    ids = [row["client"] for row in rows]
    classes = int(record.data.get("classes", 0))
    return Census.of_sizes(ids, sizes, classes, name=str(record.data["name"]))


def in_form(empty: Federation, data: dict[str, Any]) -> Federation:
    """The same with inputs of the recorded shape, to build a model by name."""
    kinds = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.int64)}
    try:
        ((kind, shape),) = data["inputs"]
        expect(shape, list[int], "inputs")
        blank = torch.zeros((), dtype=kinds[kind]).expand(empty.samples, *shape)
    except (KeyError, TypeError, ValueError, RuntimeError):
        raise SettingError("record: it does not describe the inputs of the run") from None
    return replace(empty, inputs=blank)


class WithoutData(Session):
    """A session of a finished seed whose data are not here.

    Samples are empty placeholders; training on them raises.
    """

    with_data: Callable[[], Session] | None = None  # for a run whose data can be made again

    def personal(self, id: Id) -> Tensor:  # -> x[d]
        self.server.roster.wire_id(id)  # refuses a client that took no part
        if len(self.people.held_out) and not self.held_out_personalised:
            return self._again().personal(id)
        try:
            x = super().personal(id)
        except SettingError:
            raise
        except Exception:  # whatever a model does with samples that are empty
            return self._again().personal(id)
        if not bool(x.isfinite().all()):
            raise SettingError("model: its weights are not finite, or need the client's data")
        return x

    def personalise_held_out(self, rounds: int) -> None:
        """Not without their data: see `personal`."""

    def _again(self) -> Session:
        """The same with its data."""
        if self.with_data is None:
            raise _needs_data() from None
        return self.with_data()


def _needs_data() -> SettingError:
    return SettingError(
        "models: this run trains on a client's data before it predicts; "
        "give idiolect.load(directory, task=..., federation=...) the data of the run too"
    )

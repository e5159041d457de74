"""A seed's moving parts from its checkpoint, for a run that goes on and for models of the past."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import checkpoint
from .checkpoint import Bound, Checkpoint, CheckpointError
from .identity import digest
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
    found = checkpoint.load(folder, bound_of(identity, session), settings.rounds, most, warn)
    with refusing(found):
        session.load(found, settings)
    return found


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

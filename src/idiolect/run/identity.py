"""What a run is: everything that must be the same when it is resumed."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..core.documents import decode, encode, expect
from ..core.files import read_document
from ..core.knobs import SettingError
from ..data.federation import Federation
from ..method import Method
from ..methods import name_of
from ..task.groups import AnyTask, TaskGroups
from ..task.initial import constants_digest
from ..task.target_scale import TargetScale
from ..task.task import Task
from .directory import FORMAT, version_of
from .predict import facts_of
from .settings import Settings, fixed_on_resume
from .target_units import SCALE

if TYPE_CHECKING:
    from .session import Start

GROUPS = "groups"  # in the facts of a model: those of each group of clients, by its name
REINITIALISED = "re-initialised for each seed"  # the weights of a model that a function makes


@dataclass(frozen=True)
class RunIdentity:
    """What a run is, as plain data: the content of settings.json."""

    format: int
    id: str  # 128 random bits in hexadecimal digits
    method: dict[str, Any]  # its name and fields
    run: dict[str, Any]  # the settings
    data: dict[str, Any]  # see `facts_of`
    model: dict[str, Any]
    origin: dict[str, Any]  # data and model by name, where known
    code: dict[str, Any]  # see `code_of`
    start: dict[str, Any] = field(default_factory=dict)  # seed -> digest of what it starts from

    @classmethod
    def of(
        cls,
        method: Method,
        task: AnyTask,
        federation: Federation,
        settings: Settings,
        origin: dict[str, Any] | None = None,
        start: dict[int, Start] | None = None,
        target_scale: TargetScale | None = None,
    ) -> RunIdentity:
        """That of a new run; a resumed one takes on the one in its directory (see `read`)."""
        scale_facts = {SCALE: encode(target_scale)} if target_scale else {}
        return cls(
            format=FORMAT,
            id=secrets.token_hex(16),
            method={"name": name_of(method), **method.as_dict()},
            run=settings.as_dict(),
            data=facts_of(federation) | scale_facts,
            model=groups_facts(task, federation)
            if isinstance(task, TaskGroups)
            else model_facts(task),
            origin=origin or {},
            code=code_of(method),
            start={str(seed): s.sha256() for seed, s in (start or {}).items()},
        )

    @classmethod
    def read(cls, path: Path) -> RunIdentity:
        """What settings.json in a run directory says; a SettingError where it cannot be used."""
        file = path / "settings.json"
        saved = read_document(file, dict[str, Any])
        if saved.get("format") != FORMAT:
            raise SettingError(
                f"resume: {path} has format {_short(saved.get('format'))}, "
                "made by another version of idiolect; "
                f"this version continues runs of format {FORMAT}. Finish it with the version that "
                "started it (environment.json names it), or run it again"
            )
        try:
            identity: RunIdentity = decode(saved, cls)
            if not re.fullmatch("[0-9a-f]{32}", identity.id):
                raise ValueError("id must be 128 bits in hexadecimal digits")
            json.dumps(saved, allow_nan=False)
            expect(identity.method.get("name"), str, "method.name")
        except ValueError as error:
            raise SettingError(f"directory: cannot use {file}: {error}") from None
        return identity

    def as_dict(self) -> dict[str, Any]:
        """For settings.json."""
        document = dict(vars(self))
        if not self.start:
            del document["start"]
        return document

    def digest(self) -> str:
        """SHA-256 of what settings.json says: every checkpoint has it, so that an edit shows.

        But for the rounds, where a resumed run may have more of them.
        """
        fixed = self
        if "rounds" not in fixed_on_resume(self.run.get("schedule", "constant")):
            fixed = self.with_rounds(None)
        text = json.dumps(fixed.as_dict(), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def with_rounds(self, rounds: int | None) -> RunIdentity:
        """The same run with this number of rounds; None leaves it out."""
        origin = dict(self.origin)
        for part in ("settings", "own"):
            if isinstance(origin.get(part), dict):
                origin[part] = {k: v for k, v in origin[part].items() if k != "rounds"}
        run = {k: v for k, v in self.run.items() if k != "rounds"}
        if rounds is not None:
            run["rounds"] = rounds
            own = self.origin.get("own")
            part = "own" if isinstance(own, dict) and "rounds" in own else "settings"
            if isinstance(origin.get(part), dict):
                origin[part] = {**origin[part], "rounds": rounds}
        return replace(self, run=run, origin=origin)


def model_facts(task: Task) -> dict[str, Any]:
    """What a record says of a model."""
    layout = task.layout
    weights, constants = REINITIALISED, ""
    if isinstance(task.model, nn.Module):
        x0 = task.x0.contiguous().view(torch.uint8)
        weights = hashlib.sha256(x0.numpy().tobytes()).hexdigest()
        constants = constants_digest(task.module)
    return {
        "module": type(task.module).__name__,
        "loss": task.criterion.name,
        "parameters": [[n, list(s)] for n, s in zip(layout.names, layout.shapes, strict=True)],
        "weights": weights,
        **task.initial.facts(task.module),
        **({"constants": constants} if constants else {}),
    }


def groups_facts(groups: TaskGroups, federation: Federation) -> dict[str, Any]:
    """What a record says of the models of groups of clients, and of who has which."""
    facts = {name: model_facts(t) for name, t in zip(groups.names, groups.tasks, strict=True)}
    members = groups.numbers(federation.ids).numpy().tobytes()
    first = facts[groups.names[0]]
    return {
        **first,
        "module": " | ".join(one["module"] for one in facts.values()),
        GROUPS: facts,
        "members": hashlib.sha256(members).hexdigest(),
    }


def run_number(run_id: str, seed: int) -> int:
    """32 bits that identify a seed of a run on the wire."""
    digest = hashlib.sha256(f"{run_id}:{seed}".encode()).digest()
    return int.from_bytes(digest[:4])


def check_same(
    saved: RunIdentity,
    now: RunIdentity,
    path: Path,
    warn: Callable[[str], None] | None = None,
) -> None:
    """Refuse to resume a run with anything that changes its result.

    Changed code is refused too, as its effect is unknown; with `warn` it is a warning only.
    """
    for part in ("method", "run", "data", "model", "start"):
        old, new = getattr(saved, part), getattr(now, part)
        names = [*new, *(k for k in old if k not in new)]
        if part == "run":
            names = list(fixed_on_resume(new["schedule"]))
        changed = [k for k in names if old.get(k) != new.get(k)]
        if changed == ["rounds"]:
            raise SettingError(
                f"rounds must be {_short(old.get('rounds'))}, as {path} has, got {new['rounds']}: "
                f"its schedule {new['schedule']!r} spreads the rates over all rounds, and those "
                "that are done would have had other rates. Run it again"
            )
        if changed:
            what = ", ".join(
                f"{_short(k, str)} was {_short(old.get(k))}, is {_short(new.get(k))}"
                for k in changed
            )
            raise SettingError(
                f"resume: {path} was made with another {part}: {what}; "
                "only the same settings continue a run"
            )
    changed = changed_code(saved, now)
    if not changed:
        return
    what = ", ".join(changed)
    if warn is None:
        raise SettingError(
            f"resume: {path} was started with other code: {what}; the remaining rounds may differ "
            "from those of an uninterrupted run. Finish it with the code that started it, or "
            "continue anyway with --force (in Python resume='force')"
        )
    warn(
        f"{path} was started with other code: {what}; the remaining rounds may differ from those "
        "of an uninterrupted run"
    )


def changed_code(saved: RunIdentity, now: RunIdentity) -> list[str]:
    """How this code differs from the code that started a run."""
    old, new = saved.code, now.code
    words = []
    if old.get("idiolect") != new["idiolect"]:
        words.append(f"idiolect {_short(old.get('idiolect'), str)} is now {new['idiolect']}")
    if old.get("source") != new["source"]:
        words.append("the source files of idiolect have changed")
    if old.get("method") != new["method"]:
        words.append("the source of the method has changed")
    return words


def _short(value: Any, form: Callable[[Any], str] = repr) -> str:
    """A value from a file, for a message."""
    text = form(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


_PACKAGE = Path(__file__).parents[1]
NO_PART = ("cli", "report")  # folders that say what is run and show what came out


def code_of(method: Method) -> dict[str, str]:
    """The package's version, a hash of the files that a run depends on, one of the method's own.

    >>> from ..methods import make_method
    >>> sorted(code_of(make_method("fedavg")))
    ['idiolect', 'method', 'source']
    """
    return {
        "idiolect": version_of("idiolect"),
        "source": package_source(without=NO_PART),
        "method": class_source(type(method)),
    }


@cache
def package_source(without: tuple[str, ...] = ()) -> str:
    """SHA-256 over the source files of this package, by name, without some of its folders."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        if path.relative_to(_PACKAGE).parts[0] in without:
            continue
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def class_source(cls: type) -> str:
    """SHA-256 over the modules of a class and its bases, as a class may use the rest of its module.

    Of a class in a script or a notebook, its own lines: the rest of a script says how to run it.
    """
    digest = hashlib.sha256()
    for one in cls.__mro__[:-1]:
        digest.update(f"{one.__module__}.{one.__qualname__}\n".encode())
        digest.update(_source(one).encode())
    return digest.hexdigest()


def _source(cls: type) -> str:
    module = sys.modules.get(cls.__module__)
    try:
        if module is not None and cls.__module__ != "__main__":
            return inspect.getsource(module)
        return inspect.getsource(cls)
    except (OSError, TypeError):  # typed in, or compiled
        return ""

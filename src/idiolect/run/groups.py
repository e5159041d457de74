"""Groups of clients with unlike models: one run, prepared for each model and checked together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.knobs import SettingError
from ..core.text import plural, warnings_once
from ..data.federation import Federation
from ..host.lazy_federation import LazyFederation
from ..method import NOBODY, Method
from ..methods import METHODS, make_method, name_of
from ..server.protocol import Contract, layout_of
from ..task.groups import TaskGroups
from .contract import build_contract
from .settings import Settings

if TYPE_CHECKING:
    from .prepare import RunParts

PrepareOne = Callable[..., "RunParts"]


def prepare_groups(
    method: Method, groups: TaskGroups, federation: Federation, s: Settings, prepare: PrepareOne
) -> RunParts:
    """The parts of a run whose clients have unlike models; `prepare` makes those of one model.

    Refuses methods for which they make no sense, and models that do not fit each other.
    """
    groups.check(federation.ids)
    if not method.traits.unlike_models:
        raise not_for_unlike_models(method, groups)
    if s.attack is not None and s.attack.colludes:
        raise SettingError(
            "attack must not collude where groups of clients have unlike models: malicious "
            "clients of several groups are at several hosts, which do not know of each other"
        )
    every = []
    with warnings_once():
        for k, task in enumerate(groups.tasks):
            data = federation
            if isinstance(federation, LazyFederation):
                data = federation.of_group(k)
            try:
                every.append(prepare(method, task, data, s))
            except SettingError as error:
                raise SettingError(f"group {groups.names[k]!r}: {error}") from None
    first = every[0]
    for name, parts in zip(groups.names[1:], every[1:], strict=True):
        if parts.method.as_dict() != first.method.as_dict() or parts.settings != first.settings:
            raise SettingError(
                f"groups: the default step size is too large for the model of {groups.names[0]!r} "
                f"or {name!r} ({'; '.join(first.changes or parts.changes)}); give a step size, "
                "which is the same for all"
            )
    check_alike(groups, every)
    return replace(first, federation=federation, groups=groups, of_groups=tuple(every))


def not_for_unlike_models(method: Method, groups: TaskGroups) -> SettingError:
    """The error for a method that sends models, or what belongs to one architecture."""
    tasks = [method.extended(task) for task in groups.tasks]
    sizes = [method.message(task) for task in tasks]
    parts = ", ".join(
        f"{part}: {_listed([f'{of_group.get(part, 0):,}' for of_group in sizes])} numbers"
        for part in sizes[0]
    )
    models = any(size[p] == t.d for size, t in zip(sizes, tasks, strict=True) for p in size)
    what = "sends whole models" if models else "is for clients with one and the same model"
    names = [n for n in METHODS.built_in if make_method(n).traits.unlike_models]
    return SettingError(
        f"method must make sense for clients with unlike models, got {name_of(method)!r}, which "
        f"{what} ({parts}); methods for unlike models are {', '.join(names)}"
    )


def check_alike(groups: TaskGroups, every: list[RunParts]) -> None:
    """Refuse groups whose messages, server states or common parts do not fit each other."""
    contracts = [_contract(parts) for parts in every]
    first = contracts[0]
    method = name_of(every[0].method)
    for name, other in zip(groups.names[1:], contracts[1:], strict=True):
        shapes = [c.method.common_shapes(c.task) for c in (first, other)]
        if shapes[0] != shapes[1]:
            raise SettingError(
                f"groups: the part of the models that {method} sends must be the same in all "
                f"groups, parameter by parameter, got shapes {_shapes(shapes[0])} "
                f"({groups.names[0]}) and {_shapes(shapes[1])} ({name}); another `part` may fit"
            )
        for place, one, another in (
            ("up", _forms(first.up), _forms(other.up)),
            ("down", _forms(first.down), _forms(other.down)),
            ("down to a single client", _forms(first.addressed), _forms(other.addressed)),
        ):
            for part in {**one, **another}:
                if one.get(part) != another.get(part):
                    sizes = _listed([_size(one.get(part)), _size(another.get(part))])
                    raise SettingError(
                        f"groups: what {method} sends must have the same size in all groups, got "
                        f"{sizes} numbers for {part!r} of the message {place} "
                        f"({groups.names[0]}, {name})"
                    )
        if _state_forms(first) != _state_forms(other):
            raise SettingError(
                f"groups: what the server of {method} keeps must have the same form in all "
                f"groups, got {_state_forms(first)} ({groups.names[0]}) and "
                f"{_state_forms(other)} ({name})"
            )


def _contract(parts: RunParts) -> Contract:
    """What hosts of a group would have, but for the number of the run."""
    first = parts.first_task
    classes = parts.federation.classes
    return build_contract(parts.method, first, parts.settings, 0, classes, parts.positive)[0]


def _forms(schema: Any) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Shape and dtype of every part of a message."""
    return {name: (tuple(shape), dtype) for name, shape, dtype in schema.parts}


def _state_forms(contract: Contract) -> dict[str, tuple[int, ...]]:
    """What the method keeps at the server, by name and shape."""
    method, task = contract.method, contract.task
    rows = method.server_rows(task, NOBODY)
    return {n: tuple(t.shape) for n, t in {**method.server(task), **rows}.items()}


def _size(form: tuple[tuple[int, ...], Any] | None) -> str:
    return "no" if form is None else f"{int(np.prod(form[0])):,}"


def _listed(words: list[str]) -> str:
    return ", ".join(words[:-1]) + f" and {words[-1]}" if words[1:] else words[0]


def _shapes(shapes: list[tuple[int, ...]]) -> str:
    return ", ".join("x".join(map(str, shape)) for shape in shapes) or "none"


def layouts_of(parts: RunParts) -> tuple[Any, ...]:
    """The layouts of all groups for the contract; () without groups."""
    return tuple(layout_of(one.first_task) for one in parts.of_groups)


# -- what a reader of the result should know ------------------------------------------------------
def groups_note(groups: TaskGroups, federation: Federation) -> dict[str, Any]:
    """Which models there are, and how many clients have each."""
    counts = groups.numbers(federation.ids).bincount(minlength=len(groups.names)).tolist()
    words = [
        f"{name} (d = {task.d:,}, {plural(count, 'client')})"
        for name, task, count in zip(groups.names, groups.tasks, counts, strict=True)
    ]
    return {"text": f"clients have unlike models: {', '.join(words)}"}


def public_note(federation: Federation, method: Method) -> dict[str, Any]:
    """What is not private any more, and whether the method uses it."""
    count = federation.public_samples
    origin = "the clients' training data, where they no longer are" if federation.published else ""
    words = f"public: {count:,} inputs, without targets, are known to the server and all clients"
    words += f"; they come from {origin}" if origin else ""
    return {"text": words, "inputs": count, "used": method.traits.uses_public}

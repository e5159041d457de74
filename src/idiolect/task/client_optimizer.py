"""Local steps by torch's own optimisers, for all rows of a cohort at once.

An optimiser that works element by element on a tensor x[K, n] does to every row what it would do to
that client's model alone: K clients cost one step. What such an optimiser keeps is either a tensor
like x (a momentum) or a number of the whole tensor (how many steps were taken). Rows whose numbers
differ are stepped in groups, so that each has the bias correction of its own history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..core.knobs import SettingError, brief, nearest
from ..core.registry import keyword_options
from ..core.types import State, prefixed, under
from .layout import Layout, matching
from .yogi import Yogi

ELEMENTWISE = (
    "sgd",
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "asgd",
    "nadam",
    "radam",
    "rmsprop",
    "rprop",
    "yogi",
)
_MIXES_COORDINATES = {
    "lbfgs": "it searches along whole models, with products over all coordinates",
    "muon": "it makes whole matrices orthogonal",
    "adafactor": "it keeps means over the rows and columns of a matrix",
    "sparseadam": "it is for sparse gradients, and these are dense",
}
STATES = ("reset", "private")
_COUNT = "count"  # steps that a row has taken with its state; 0 = it has none yet


class Piece(NamedTuple):
    """Neighbouring coordinates with one learning rate."""

    first: int
    end: int
    factor: float  # on the method's learning rate; 0 = not stepped


@dataclass(frozen=True)
class ClientOptimizer:
    """How clients step, whatever the method: the run's settings `optimizer...` and `lr_scale`.

    >>> ClientOptimizer().plain, ClientOptimizer("adam").plain
    (True, False)
    >>> ClientOptimizer("sgd", "momentum=0.9").form
    {'momentum_buffer': None}
    """

    name: str = "sgd"
    options: str = ""
    state: str = "reset"
    lr_scale: str = ""

    def __post_init__(self) -> None:
        reason = _MIXES_COORDINATES.get(self.name)
        if reason:
            raise SettingError(
                f"optimizer cannot be {self.name!r} at the clients: {reason}; "
                f"one of {', '.join(ELEMENTWISE)}"
            )
        if self.name not in ELEMENTWISE:
            raise nearest(self.name, ELEMENTWISE, "optimizer")
        parse_scale(self.lr_scale)
        if not self.plain:
            _ = self.form  # refuses options that do not fit
        if self.state == "private" and not self.form:
            raise SettingError(
                f"optimizer_state cannot be 'private' with {self.words_of_step}, which has "
                "no state to keep; give momentum (optimizer_options 'momentum=0.9') or another "
                "optimizer, e.g. 'adam'"
            )

    @property
    def plain(self) -> bool:
        """Whether it is x <- x - lr g, which needs no optimiser."""
        return self.name == "sgd" and not self.options and not self.lr_scale

    @property
    def words_of_step(self) -> str:
        return f"{self.name} ({self.options})" if self.options else self.name

    @cached_property
    def form(self) -> dict[str, torch.dtype | None]:
        """What torch keeps, by name: None for a tensor like x, else the dtype of the number."""
        if "differentiable" in parse_options(self.options, "optimizer_options"):
            raise SettingError(
                "optimizer_options must not have 'differentiable': no step is differentiated"
            )
        if self.plain:  # torch takes seconds over the first optimiser of a process
            return {}
        x = torch.zeros(2, 3)
        x.grad = torch.zeros_like(x)
        optimizer = self._make([{"params": [x]}], 0.1)
        try:
            optimizer.step()
        except (RuntimeError, AssertionError, TypeError, ValueError) as error:
            raise SettingError(
                f"optimizer_options: {self.options!r} does not fit {self.name}: {error}"
            ) from None
        state = {n: torch.as_tensor(v) for n, v in optimizer.state[x].items() if v is not None}
        return {n: None if t.shape == x.shape else t.dtype for n, t in state.items()}

    def _make(self, groups: list, lr: float) -> torch.optim.Optimizer:
        return make_optimizer(self.name, self.options, lr, groups, "optimizer_options")

    def fit(self, layout: Layout, stepped: Mapping[str, Tensor | None]) -> Fitted:
        """For the vectors that a method steps: name -> their coordinates, None for all of R^d."""
        factors = scale_factors(self.lr_scale, layout)
        pieces = {}
        for name, coordinates in stepped.items():
            mine = factors if coordinates is None else factors[coordinates.cpu()]
            pieces[name] = _pieces(mine)
        return Fitted(self, pieces, {"w": _pieces(factors)})


def in_words(run: Mapping[str, Any]) -> str:
    """What a run's settings say of its clients' steps, for a reader of results; "" for plain SGD.

    >>> in_words({"optimizer": "sgd", "optimizer_options": "momentum=0.9"})
    'sgd (momentum=0.9), state reset each round'
    """
    name, options, state, scale = (
        run.get(setting) or usual
        for setting, usual in (
            ("optimizer", "sgd"),
            ("optimizer_options", ""),
            ("optimizer_state", "reset"),
            ("lr_scale", ""),
        )
    )
    words = [f"{name} ({options})" if options else str(name)]
    if state == "private":
        words.append("each client keeps its state")
    elif name != "sgd" or "momentum" in str(options):
        words.append("state reset each round")
    if scale:
        words.append(f"learning rates times {scale}")
    return "" if words == ["sgd"] else ", ".join(words)


def parse_scale(text: str) -> list[tuple[str, float]]:
    """ "head.*=10, features.*=0.1" to pairs of pattern and factor.

    >>> parse_scale("head.*=10, features.*=0.1")
    [('head.*', 10.0), ('features.*', 0.1)]
    """
    pairs = []
    for piece in filter(None, (p.strip() for p in text.split(","))):
        pattern, _, number = piece.rpartition("=")
        try:
            factor = float(number)
            if not pattern.strip() or not 0 <= factor < float("inf"):
                raise ValueError
        except ValueError:
            raise SettingError(
                f"lr_scale must be pattern=factor pairs with factors >= 0, got {piece!r}, "
                "e.g. 'head.*=10, features.*=0.1'"
            ) from None
        pairs.append((pattern.strip(), factor))
    return pairs


def scale_factors(text: str, layout: Layout) -> Tensor:  # -> float64[d]
    """The factor on the learning rate of each coordinate; of several patterns the last one wins."""
    factors = torch.ones(layout.starts[-1], dtype=torch.float64)
    for pattern, factor in parse_scale(text):
        for name, matches in zip(
            layout.names, matching(pattern, layout.parts, "lr_scale"), strict=True
        ):
            if matches:
                first, end = layout.span(name)
                factors[first:end] = factor
    if text and not bool(factors.any()):
        raise SettingError(f"lr_scale must leave something to train, got {text!r}")
    return factors


def _pieces(factors: Tensor) -> list[Piece]:
    values, counts = torch.unique_consecutive(factors, return_counts=True)
    ends = counts.cumsum(0).tolist()
    return [
        Piece(end - count, end, factor)
        for factor, count, end in zip(values.tolist(), counts.tolist(), ends, strict=True)
    ]


@dataclass(frozen=True)
class Fitted:
    """A client optimiser for the vectors of one method and task, by name."""

    optimizer: ClientOptimizer
    pieces: dict[str, list[Piece]]
    whole: dict[str, list[Piece]]  # the same for steps on a whole model "w", before it is used

    def before_use(self) -> Fitted:
        """For steps on whole models before they are used, whatever the method steps in training."""
        return replace(self, pieces=self.whole)

    def blank(self, clients: int, x0: Tensor) -> State:
        """Rows of clients that have taken no step: "w.exp_avg"[K, n], ..., all zero."""
        rows: State = {}
        for name, pieces in self.pieces.items():
            width = pieces[-1].end if pieces else 0
            rows[f"{name}.{_COUNT}"] = torch.zeros(clients, 1, dtype=torch.int64, device=x0.device)
            for part, dtype in self.optimizer.form.items():
                size = width if dtype is None else len(pieces)
                rows[f"{name}.{part}"] = x0.new_zeros(clients, size, dtype=dtype or x0.dtype)
        return rows


class Optimise:
    """The optimisers of the clients of one `Here`. What they keep is lost unless it is asked for.

    `adopt` gives them what the clients kept from earlier rounds, `kept` what they keep now.
    """

    def __init__(self, fitted: Fitted):
        self.fitted = fitted
        self._rows: State = {}
        self._begun: dict[str, Steps] = {}

    def begin(self, name: str, x: Tensor, lr: float) -> Steps:
        """Steps on the vector of that name from x[K, n], which is left as it is."""
        fitted = self.fitted
        if name not in fitted.pieces:
            raise nearest(name, fitted.pieces, "Method.stepped")
        self._collect(name)
        earlier = under(self._rows, f"{name}.")
        steps = Steps(fitted.optimizer, fitted.pieces[name], x, lr, earlier)
        self._begun[name] = steps
        return steps

    def adopt(self, rows: State) -> None:
        """What these clients have kept: see `Fitted.blank`."""
        self._rows = rows

    def kept(self) -> State:
        """The same after the steps begun here; nothing where nothing was adopted."""
        for name in self._begun:
            self._collect(name)
        return self._rows

    def _collect(self, name: str) -> None:
        if self._rows and name in self._begun:
            self._rows = self._rows | prefixed(self._begun[name].state(), f"{name}.")


@dataclass
class _Group:
    """Rows with the same history: one optimiser of torch."""

    rows: Tensor | None  # int64[k]; None = all, in their order
    x: Tensor  # [k, n]
    count: int
    optimizer: torch.optim.Optimizer | None  # None where nothing is to be stepped
    parameters: list[Tensor]  # columns of x, one per piece; x itself where it is all of it


class Steps:
    """Steps on x[K, n] in place, on a copy of the rows; `state` holds tensors by name.

    >>> steps = Steps(ClientOptimizer("sgd", "momentum=0.5"), [Piece(0, 1, 1.0)],
    ...               torch.zeros(2, 1), lr=1.0)
    >>> _ = steps(torch.ones(2, 1))
    >>> steps(torch.ones(2, 1), active=torch.tensor([True, False])).flatten().tolist()
    [-2.5, -1.0]
    """

    def __init__(
        self,
        optimizer: ClientOptimizer,
        pieces: list[Piece],
        x: Tensor,
        lr: float,
        state: State | None = None,
    ):
        self.optimizer = optimizer
        self.pieces = [piece for piece in pieces if piece.factor]
        self.numbers = [i for i, piece in enumerate(pieces) if piece.factor]  # their places
        self.places = len(pieces)
        self.x = x.clone(memory_format=torch.contiguous_format)
        self.lr = lr
        self._before = state or {}
        self._finished: list[tuple[Tensor, State]] = []
        self._groups = self._begin()

    def __call__(self, g: Tensor, active: Tensor | None = None) -> Tensor:
        """One step with the gradient g[K, n] for the rows still at work, all rows afterwards."""
        if active is not None:
            self._groups = [new for old in self._groups for new in self._only(old, active)]
        for group in self._groups:
            if group.optimizer is None:
                continue
            mine = g if group.rows is None else g[group.rows]
            for piece, p in zip(self.pieces, group.parameters, strict=True):
                p.grad = mine[:, piece.first : piece.end].contiguous()
            group.optimizer.step()
            group.count += 1
            for piece, p in zip(self.pieces, group.parameters, strict=True):
                p.grad = None
                if p is not group.x:
                    group.x[:, piece.first : piece.end] = p
            if group.rows is not None:
                self.x[group.rows] = group.x
        return self.x

    def state(self) -> State:
        """What is kept of every row: see `Fitted.blank`."""
        if not self._before:
            return {}
        out = {n: t.clone() for n, t in self._before.items()}
        parts = [(group.rows, self._state_of(group)) for group in self._groups if group.count]
        for rows, state in [*self._finished, *parts]:
            for name, t in state.items():
                if rows is None:
                    out[name] = t
                else:
                    out[name][rows] = t
        return out

    # -- inside ----------------------------------------------------------------------------------
    def _begin(self) -> list[_Group]:
        """Rows in groups of equal history."""
        if not self._before or not self.pieces:
            return [self._group(None, 0, {})]
        history = [self._before[_COUNT].double()]
        history += [self._before[n].double() for n, like in self.optimizer.form.items() if like]
        _, which = torch.unique(torch.cat(history, dim=1), dim=0, return_inverse=True)
        groups = []
        for number in which.unique().tolist():
            rows = (which == number).nonzero().flatten()
            alone = None if len(rows) == len(which) else rows
            count = int(self._before[_COUNT][rows[0], 0])
            state = {n: t if alone is None else t[rows] for n, t in self._before.items()}
            groups.append(self._group(alone, count, state))
        return groups

    def _group(self, rows: Tensor | None, count: int, state: State) -> _Group:
        x = self.x if rows is None else self.x[rows]
        whole = self.pieces and self.pieces[0][:2] == (0, x.shape[1])
        # fused steps of torch write to the wrong places where a tensor is not contiguous
        parameters = [x] if whole else [x[:, a:b].contiguous() for a, b, _ in self.pieces]
        if not parameters:
            return _Group(rows, x, 0, None, [])
        groups = [
            {"params": [p], "lr": self.lr * piece.factor}
            for p, piece in zip(parameters, self.pieces, strict=True)
        ]
        optimizer = self.optimizer._make(groups, self.lr)
        if count:
            for p, piece, i in zip(parameters, self.pieces, self.numbers, strict=True):
                optimizer.state[p] = {
                    n: (
                        state[n][:, piece.first : piece.end].clone()
                        if number is None
                        else state[n][0, i].cpu()  # torch counts there
                    )
                    for n, number in self.optimizer.form.items()
                }
        return _Group(rows, x, count, optimizer, parameters)

    def _only(self, group: _Group, active: Tensor) -> list[_Group]:
        """The group without the rows that have taken all their steps: they stay where they are."""
        active = active.to(self.x.device)
        mine = active if group.rows is None else active[group.rows]
        if bool(mine.all()) or group.optimizer is None:
            return [group]
        rows = group.rows
        if rows is None:
            rows = torch.arange(len(self.x), device=self.x.device)
        state = self._state_of(group) if group.count else {}
        if self._before and state:
            self._finished.append((rows[~mine], {n: t[~mine] for n, t in state.items()}))
        if not bool(mine.any()):
            return []
        return [self._group(rows[mine], group.count, {n: t[mine] for n, t in state.items()})]

    def _state_of(self, group: _Group) -> State:
        """The rows of a group's state, as in `Fitted.blank`."""
        assert group.optimizer is not None
        k, width = group.x.shape
        count = torch.full((k, 1), group.count, device=group.x.device)
        out: State = {_COUNT: count}
        for name, number in self.optimizer.form.items():
            whole = len(self.pieces) == 1 and self.pieces[0][:2] == (0, width)
            states = [group.optimizer.state[p][name] for p in group.parameters]
            if number is None and whole:
                out[name] = states[0]
                continue
            size = width if number is None else self.places
            out[name] = group.x.new_zeros(k, size, dtype=number or group.x.dtype)
            for t, piece, i in zip(states, self.pieces, self.numbers, strict=True):
                if number is None:
                    out[name][:, piece.first : piece.end] = t
                else:
                    out[name][:, i] = t
        return out


# -- torch's optimisers by name, with options as text: for clients and for the server -------------
_NOT_FROM_A_GRADIENT_ALONE = ("optimizer", "lbfgs", "sparseadam", "muon")


def optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    """torch's optimisers that step from a gradient alone, by lower-case name; and Yogi.

    >>> {"sgd", "adam"} <= optimizers().keys(), "lbfgs" in optimizers()
    (True, False)
    """
    classes = {
        name.lower(): cls
        for name, cls in vars(torch.optim).items()
        if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)
    }
    classes["yogi"] = Yogi
    return {n: cls for n, cls in classes.items() if n not in _NOT_FROM_A_GRADIENT_ALONE}


def parse_options(options: str, field: str) -> dict[str, Any]:
    """Options as text, "momentum=0.9, betas=(0.9, 0.99)", to a dict; `field` is the setting's name.

    >>> parse_options("momentum=0.9, nesterov=True", "server_options")
    {'momentum': 0.9, 'nesterov': True}
    """
    try:
        return keyword_options(options)
    except ValueError:
        raise SettingError(
            f"{field} must be name=value, name=value, ..., got {brief(options)}"
        ) from None


def make_optimizer(
    name: str, options: str, lr: float, parameters: Iterable[Any], field: str
) -> torch.optim.Optimizer:
    """A new optimiser of these tensors or parameter groups; options that do not fit are refused."""
    try:
        cls = cast(Any, optimizers()[name])
        return cls(parameters, lr=lr, **parse_options(options, field))
    except SettingError:
        raise
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise SettingError(f"{field}: {options!r} does not fit {name}: {error}") from None

"""Predictions of a client's own model for new rows, with the labels of the training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..core.documents import expect
from ..core.knobs import SettingError
from ..core.text import first_line, plural
from ..core.types import Id, Tree, first, leaves, map_tree
from ..data.prepare import Preparation
from ..data.read.pictures import plan_pixels
from ..task.forward import forward
from ..task.losses import Loss, classes_last, logits
from ..task.task import Task
from .sample_weights import weight_facts

AT_ONCE = 4096  # rows in one forward pass


@dataclass(frozen=True)
class Prediction:
    """Of n rows: labels with their probabilities, or values for a regression."""

    labels: np.ndarray | None = None  # [n], the user's own labels; None for a regression
    probabilities: np.ndarray | None = None  # float[n, C], in the order of `classes`
    values: np.ndarray | None = None  # float[n] or [n, ...], for a regression
    classes: tuple[Any, ...] = ()  # the label of each column of probabilities
    index: Any = None  # of the data frame that the rows came in; None for arrays

    def __len__(self) -> int:
        answers = self.values if self.labels is None else self.labels
        return 0 if answers is None else len(answers)

    def to_pandas(self) -> Any:
        """A data frame: label and a column per class, or value (value 0, ... where several).

        Its index is that of the rows.
        """
        import pandas

        if self.labels is None:
            values = np.asarray(self.values)
            flat = values.reshape(len(values), -1)
            names = ["value"] if values.ndim == 1 else [f"value {i}" for i in range(flat.shape[1])]
            columns = {name: flat[:, i] for i, name in enumerate(names)}
            return pandas.DataFrame(columns, index=self.index)
        table: dict[str, Any] = {"label": self.labels}
        if self.probabilities is not None and self.probabilities.ndim == 2:
            for number, label in enumerate(self.classes):
                table[f"probability {label}"] = self.probabilities[:, number]
        return pandas.DataFrame(table, index=self.index)

    def __repr__(self) -> str:
        if self.labels is None:
            return f"Prediction({plural(len(self), 'value')})"
        classes = plural(len(self.classes), "class", "classes")
        return f"Prediction({plural(len(self), 'label')} of {classes})"


class Models(Protocol):
    """Models of clients: of a run, of new clients, of a site, of an exported folder."""

    @property
    def task(self) -> Task: ...

    def module(self, client: Id) -> nn.Module: ...


def refuse_collapsed(round_number: int, client: Id) -> NoReturn:
    """Refuse to predict with a model that had collapsed by a round."""
    raise SettingError(
        f"model: that of client {client!r} has collapsed (in round {round_number}), so that its "
        "predictions mean nothing; train with smaller step sizes (lr=...), clip=1, or inputs "
        "scaled to about 1. To see them anyway: allow_collapsed=True, or --allow-collapsed"
    )


def predict(
    models: Models,
    rows: Any,
    owners: Id | list[Id],
    data: dict[str, Any],
    allow_collapsed: bool = False,
) -> Prediction:
    """The models of `owners` (one for all rows, or one for each) on raw rows or inputs."""
    task = models.task
    inputs = _inputs(rows, owners, data, task.dtype)
    n = len(first(inputs))
    if not isinstance(owners, list):
        outputs = _outputs(models, owners, inputs)
    else:
        if len(owners) != n:
            raise SettingError(f"client: {len(owners)} ids for {n} rows; one for each, or one")
        parts: list[Tensor] = []
        places: list[int] = []
        for owner in dict.fromkeys(owners):
            mine = [i for i, one in enumerate(owners) if one == owner]
            index = torch.tensor(mine)
            parts.append(_outputs(models, owner, map_tree(lambda t, i=index: t[i], inputs)))
            places += mine
        if not parts:
            raise SettingError("rows: there are none; at least one is needed")
        outputs = torch.cat(parts)[torch.tensor(places).argsort()]
    prediction = _prediction(outputs, task.criterion, data, allow_collapsed)
    return replace(prediction, index=_index(rows))


def _index(rows: Any) -> Any:
    """The index of a data frame of pandas; other rows have none."""
    import pandas

    return rows.index if isinstance(rows, pandas.DataFrame) else None


def _outputs(models: Models, client_id: Id, inputs: Tree) -> Tensor:
    module = models.module(client_id)
    device = models.task.device
    pieces = []
    try:
        with torch.no_grad():
            for low in range(0, max(1, len(first(inputs))), AT_ONCE):
                piece = map_tree(lambda t, at=low: t[at : at + AT_ONCE].to(device), inputs)
                pieces.append(logits(forward(module, piece)).cpu())
    except SettingError:
        raise SettingError(
            "rows: the model returns several tensors; call it yourself: result.personal(client)"
        ) from None
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        reason = first_line(error)
        shapes = ", ".join(str(tuple(t.shape[1:])) for t in leaves(inputs))
        raise SettingError(f"rows: the model does not accept {shapes} per row: {reason}") from None
    return torch.cat(pieces)


def _prediction(
    outputs: Tensor, loss: Loss, data: dict[str, Any], allow_collapsed: bool
) -> Prediction:
    classes = int(data.get("classes", 0))
    labels = labels_of(data)
    scores = _scores(outputs, loss, data)
    probabilities = None if scores is None else loss.probabilities(scores, classes)
    answers = outputs if probabilities is None else probabilities
    if not allow_collapsed and not bool(answers.isfinite().all()):
        raise SettingError("model: its outputs are not finite; training has collapsed")
    if probabilities is None:
        values = outputs.squeeze(-1) if outputs.dim() > 1 and outputs.shape[-1] == 1 else outputs
        return Prediction(values=values.numpy())
    if labels:  # outputs beyond the classes of the data have no label
        labels += tuple(range(len(labels), probabilities.shape[-1]))
    names = labels or tuple(range(probabilities.shape[-1]))
    return Prediction(
        _array(names)[probabilities.argmax(-1).numpy()], probabilities.numpy(), None, names
    )


def _scores(outputs: Tensor, loss: Loss, data: dict[str, Any]) -> Tensor | None:
    """outputs as [n, ..., C], one C for each target of a sample; None where they are not that."""
    if "targets" not in data:  # one per sample
        return outputs if outputs.dim() > 1 else outputs.unsqueeze(-1)
    shape = data["targets"]
    try:
        expect(shape, list[int], "targets")
        targets = torch.empty(len(outputs), *shape, device="meta")
    except (ValueError, RuntimeError) as error:
        raise SettingError(f"record: data.{error}") from None
    if outputs.shape == targets.shape:
        return outputs.unsqueeze(-1)
    scores = classes_last(outputs, targets, getattr(loss, "second", False))
    if scores is None and outputs.dim() == targets.dim() + 1:  # of another size than in training
        return outputs if len(shape) == 1 else outputs.movedim(1, -1)  # a sentence, a picture
    return scores


def _array(labels: tuple[Any, ...]) -> np.ndarray:
    """Labels as an array that keeps their type."""
    if len({type(label) for label in labels}) == 1:
        return np.array(labels)
    mixed = np.empty(len(labels), dtype=object)
    mixed[:] = labels
    return mixed


# -- the data of the run ---------------------------------------------------------------------------
def labels_of(data: dict[str, Any]) -> tuple[Any, ...]:
    """The user's label of each class, from a record; SettingError where they cannot be that."""
    labels = data.get("class_names", [])
    try:
        expect(labels, list[bool | int | float | str], "class_names")
        if labels and len(labels) != data.get("classes"):
            raise ValueError("class_names and classes are not as many")
    except ValueError as error:
        raise SettingError(f"record: data.{error}") from None
    return tuple(labels)


def preparation_of(data: dict[str, Any]) -> Preparation | None:
    """How raw rows become inputs, from a record."""
    saved = data.get("preparation")
    return None if saved is None else Preparation.from_dict(saved)


def facts_of(federation: Any) -> dict[str, Any]:
    """What a record keeps of a federation."""
    identity = {"clients": federation.clients, "sha256": federation.fingerprint()}
    weights = weight_facts(federation)
    public = {"public": federation.public_samples} if federation.public_samples else {}
    return {"name": federation.name, **identity, **weights, **public, **sample_form(federation)}


def sample_form(federation: Any) -> dict[str, Any]:
    """What predictions need to know of a federation's samples."""
    facts: dict[str, Any] = {
        "classes": federation.classes,
        "inputs": [[str(t.dtype), list(t.shape[1:])] for t in leaves(federation.inputs)],
    }
    if isinstance(federation.targets, Tensor) and federation.targets.dim() > 1:
        facts["targets"] = list(federation.targets.shape[1:])
    if federation.class_names:
        facts["class_names"] = [_plain_label(label) for label in federation.class_names]
    if federation.preparation is not None:
        facts["preparation"] = federation.preparation.as_dict()
    return facts


def _plain_label(label: Any) -> Any:
    value = label.item() if isinstance(label, np.generic) else label
    return value if isinstance(value, bool | int | float | str) else str(value)


# -- rows and clients ---------------------------------------------------------------------------
def client_by_row(client: Any) -> list[Any] | None:
    """The client of each row, from a list, an array or a column of a table; None for one client.

    >>> client_by_row(np.array(["north", "south"])), client_by_row("north")
    (['north', 'south'], None)
    """
    if client is None or isinstance(client, str | bytes | int | float | np.generic):
        return None
    for convert in ("tolist", "to_list"):
        if hasattr(client, convert):
            return list(getattr(client, convert)())
    return list(client)


def _inputs(rows: Any, owners: Id | list[Id], data: dict[str, Any], dtype: torch.dtype) -> Tree:
    """Rows as the model takes them."""
    if hasattr(rows, "columns") and not isinstance(rows, Tensor | np.ndarray):  # a data frame
        preparation = preparation_of(data)
        if preparation is not None:
            return torch.from_numpy(preparation.apply(rows, clients=owners)).to(dtype)
        rows = rows.to_numpy()
    input_forms = data.get("inputs") or []
    whole = [isinstance(entry, list) and "int" in str(entry[:1]) for entry in input_forms]
    inputs = _as_tensors(rows)
    if input_forms and len(leaves(inputs)) == len(input_forms):
        entries = iter(input_forms)
        inputs = map_tree(lambda t: _as_pictures(t, next(entries)), inputs)
    tensors = leaves(inputs)
    if input_forms and len(tensors) == len(input_forms):
        kinds = iter(whole)
        inputs = map_tree(lambda t: t.long() if next(kinds) else t.to(dtype), inputs)
        shapes: list[Sequence[int]] = [entry[1] for entry in input_forms]
        for t, shape in zip(tensors, shapes, strict=True):
            if t.dim() == len(shape) and list(t.shape) == list(shape):
                raise SettingError(
                    f"rows: shape {tuple(t.shape)} is that of one row; several are expected, "
                    "such as rows[None]"
                )
    if not len(first(inputs)):
        raise SettingError("rows: there are none; at least one is needed")
    return inputs


def _as_pictures(t: Tensor, trained_on: Any) -> Tensor:
    """Pictures as the training data were read: bytes scaled, channels first."""
    form = (str(t.dtype), list(t.shape[1:]))
    if form == tuple(trained_on) or "float" not in str(trained_on[0]) or t.dim() < 3:
        return t
    channels = "auto" if form[1] != trained_on[1] else "first"
    change = plan_pixels(t, "rows", True, channels)
    return t if change is None else change(t)


def _as_tensors(tree: Any) -> Tree:
    if isinstance(tree, dict):
        return {name: _as_tensors(part) for name, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_as_tensors(part) for part in tree)
    if isinstance(tree, Tensor):
        return tree.detach().cpu()
    array = np.asarray(tree)
    if array.dtype == object or array.dtype.kind not in "biuf":
        raise SettingError(
            "rows must be numbers, or a data frame with the columns of the training table, got "
            f"an array of {array.dtype}"
        )
    return torch.from_numpy(np.ascontiguousarray(array))

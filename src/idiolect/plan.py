"""A run by names: method, data, model and settings as plain data, from flags, a TOML file or a run directory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from . import data, methods, models
from .data.federation import Federation
from .fields import build, nearest
from .losses import LOSSES
from .method import Method
from .settings import Settings
from .task import Task


@dataclass(frozen=True)
class Plan:
    """Everything a run needs, by name; `build` makes it."""

    method: str
    method_fields: dict[str, Any] = field(default_factory=dict)
    data: str = "synthetic"
    data_options: dict[str, Any] = field(default_factory=dict)
    model: str = ""  # "" = chosen from the data
    model_options: dict[str, Any] = field(default_factory=dict)
    loss: str = ""  # "" = chosen from the data
    settings: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def make_method(self) -> Method:
        return methods.make(self.method, **self.method_fields)

    def make_settings(self) -> Settings:
        return build(Settings, self.settings, "run")

    def make_data(self) -> Federation:
        return data.load(self.data, **self.data_options)

    def make_task(self, federation: Federation) -> Task:
        loss = self.loss or ("cross_entropy" if federation.classes else "half_squared")
        if loss not in LOSSES:
            raise nearest(loss, LOSSES, "loss")
        shape = tuple(federation.inputs.shape[1:])
        outputs = federation.classes if loss == "cross_entropy" else 1
        tokens = not federation.inputs.is_floating_point()
        name = self.model or ("transformer" if tokens else models.default(shape, outputs))
        models.make(name, shape, outputs, **self.model_options)  # refuse a bad one now, not under the first seed
        return Task(lambda: models.make(name, shape, outputs, **self.model_options), loss)


def method_spec(text: str) -> tuple[str, dict[str, str]]:
    """ "lp-proj:p=1,lam=0.1" to a name and fields.

    >>> method_spec("lp-proj:p=1,lam=0.1")
    ('lp-proj', {'p': '1', 'lam': '0.1'})
    """
    name, _, rest = text.partition(":")
    pairs = [piece.partition("=") for piece in rest.split(",") if piece]
    return name, {key.strip().replace("-", "_"): value.strip() for key, _, value in pairs}

"""A run by names: method, data, model and settings as plain data.

From flags, a TOML file or a run directory.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, get_type_hints

from .. import data, models
from ..core.knobs import SettingError, build, nearest
from ..core.text import split_outside
from ..core.typed import expect_fields
from ..data.federation import Federation
from ..method import Method
from ..methods import METHODS, make_method
from ..methods.presets import PRESET
from ..task.losses import LOSSES
from ..task.start import Initial
from ..task.task import Task
from .settings import Settings

# settings that a comparison has one of
COMMON = (
    "seed",
    "seeds",
    "eval_every",
    "held_out",
    "held_out_rounds",
    "bytes",
    "target_accuracy",
    "metrics",
    "metric",
    "target_value",
)


@dataclass(frozen=True)
class Plan:
    """Everything a run needs, by name."""

    method: str
    method_fields: dict[str, Any] = field(default_factory=dict)
    data: str = "synthetic"
    data_options: dict[str, Any] = field(default_factory=dict)
    model: str = ""  # "" = chosen from the data
    model_options: dict[str, Any] = field(default_factory=dict)
    loss: str = ""  # "" = chosen from the data
    settings: dict[str, Any] = field(default_factory=dict)
    task_options: dict[str, Any] = field(default_factory=dict)  # frozen, weights, weights_missing
    own: dict[str, Any] = field(default_factory=dict)  # of one row of a comparison; they win

    @property
    def run_settings(self) -> dict[str, Any]:
        return {**self.settings, **self.own}

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, saved: Any, where: str) -> Plan:
        """The inverse of `as_dict`, of unknown origin; SettingError names what is wrong in it."""
        try:
            expect_fields(saved, get_type_hints(cls))
        except ValueError as error:
            raise SettingError(f"{where}: {error}") from None
        return cls(**saved)

    def make_method(self) -> Method:
        return make_method(self.method, **self.method_fields)

    def make_settings(self) -> Settings:
        return build(Settings, self.run_settings, "run")

    def make_data(self) -> Federation:
        return data.load(self.data, **self.data_options)

    def make_task(self, federation: Federation) -> Task:
        loss = self.loss or ("cross_entropy" if federation.classes else "half_squared")
        if loss not in LOSSES:
            raise nearest(loss, LOSSES, "loss")
        shape = federation.shape
        outputs = federation.classes if loss == "cross_entropy" else 1
        tokens = not federation.inputs.is_floating_point()
        name = self.model or ("transformer" if tokens else models.default(shape, outputs))
        # refuse a bad one now, not under the first seed
        models.make(name, shape, outputs, **self.model_options)
        given = build(Initial, self.task_options, "task")
        return Task(
            partial(models.make, name, shape, outputs, **self.model_options),
            loss,
            **given.as_dict(),
        )


def method_spec(text: str) -> tuple[str, dict[str, str]]:
    """ "lp-proj:p=1,lam=0.1" to a name and fields. Commas inside parentheses belong to a value.

    >>> method_spec("lp-proj:p=1,lam=0.1")
    ('lp-proj', {'p': '1', 'lam': '0.1'})
    >>> method_spec("fedavg:channel=feedback + qsgd(levels=16, norm=inf),lr=0.2")
    ('fedavg', {'channel': 'feedback + qsgd(levels=16, norm=inf)', 'lr': '0.2'})
    >>> method_spec("mymodule:MyMethod:lr=0.2")
    ('mymodule:MyMethod', {'lr': '0.2'})
    """
    name, _, rest = text.partition(":")
    if rest and name not in METHODS and "=" not in rest.partition(":")[0]:  # module:Name
        attribute, _, rest = rest.partition(":")
        name = f"{name}:{attribute}"
    pairs = [piece.partition("=") for piece in split_outside(rest, ",") if piece.strip()]
    return name, {key.strip().replace("-", "_"): value.strip() for key, _, value in pairs}


def row_spec(text: str) -> tuple[str, dict[str, str], dict[str, str]]:
    """A method of a comparison: its name, its fields, and the run settings of its row alone.

    >>> row_spec("fedavg:steps=3,channel=qsgd(levels=4),sample=5")
    ('fedavg', {'steps': '3'}, {'channel': 'qsgd(levels=4)', 'sample': '5'})
    """
    name, given = method_spec(text)
    cls, _ = METHODS.find(name)
    theirs = {f.name for f in fields(cls)} | {PRESET}
    runs = {f.name for f in fields(Settings)}
    for key in given:
        if key not in theirs | runs:
            raise nearest(key, theirs | (runs - set(COMMON)), f"setting of {name}")
        if key in COMMON and key not in theirs:
            flag = key.replace("_", "-")
            raise SettingError(
                f"{key}: it is not accepted for {name} alone; "
                f"it belongs to the whole comparison: --{flag}"
            )
    own = {k: v for k, v in given.items() if k not in theirs}
    return name, {k: v for k, v in given.items() if k in theirs}, own

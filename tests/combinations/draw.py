"""Random combinations: any method, model, loss, data and options of a run, as plain data."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from idiolect.attacks import ATTACKS
from idiolect.channels import CHANNELS
from idiolect.core.knobs import Knobs, kinds_of
from idiolect.engine.delays import DELAYS
from idiolect.host.metrics import METRICS
from idiolect.methods import METHODS
from idiolect.privacy.protection import PROTECTIONS
from idiolect.server.asynchronous import STALENESS
from idiolect.server.rules import RULES
from idiolect.server.rules.rule import Wrapper
from idiolect.task.client_optimizer import ELEMENTWISE
from idiolect.task.kernels import KERNELS

from .data import IDS, SIZES
from .losses import LOSSES
from .zoo import ZOO

Values = dict[str, Any]
ROUNDS = 3


@dataclass(frozen=True)
class Combination:
    """One run, described by names and numbers alone; the simplest values are the defaults."""

    method: str = "local"
    fields: Values = field(default_factory=dict)  # of the method
    model: str = "linear"
    targets: str = "classes"
    loss: str = "default"
    clients: str = "even"
    ids: str = "numbers"
    source: str = "arrays"
    options: dict[str, Values] = field(default_factory=dict)  # settings of the run, by subject

    def settings(self) -> Values:
        """The settings of the run."""
        settings: Values = {"rounds": ROUNDS, "batch": 4}
        for values in self.options.values():
            settings |= values
        return settings

    def without(self, name: str) -> Combination:
        """The same without an option or a field of the method."""
        if name in self.fields:
            rest = {n: v for n, v in self.fields.items() if n != name}
            return dataclasses.replace(self, fields=rest)
        rest = {n: v for n, v in self.options.items() if n != name}
        return dataclasses.replace(self, options=rest)

    def as_dict(self) -> Values:
        """What differs from the simplest combination."""
        simplest = Combination()
        return {n: v for n, v in vars(self).items() if v != getattr(simplest, n)}

    def __str__(self) -> str:
        """A command that tries this combination alone."""
        return f"python -m tests.combinations --only {json.dumps(json.dumps(self.as_dict()))}"


# -- fields of a dataclass, by their ranges --------------------------------------------------------
# fields that hold text, and those whose range says less than their sense
WORDS = {
    "part": ("output", "input", "embedding", "norms", "biases", "all", "none", "0.*"),
    "layer": ("head",),
    "shared_part": ("head", "output", "input", "all", "none"),
}
SMALL = {"steps": 4, "epochs": 2, "alternations": 3, "dim": 9, "blocks": 3, "per_column": 2}
LEFT_OUT = ("dims", "path", "seed")


def draw_value(rng: random.Random, f: dataclasses.Field, kind: type) -> Any:
    """A value within the range of a field."""
    m = f.metadata
    if "choices" in m:
        return rng.choice(m["choices"])
    if kind is bool:
        return rng.random() < 0.5
    if kind is str:
        return rng.choice(WORDS[f.name])
    least = m.get("low", m.get("above", -2))
    if kind is int:
        short = [most for word, most in SMALL.items() if f.name.endswith(word)]
        most = short[0] if short else max(int(f.default) + 1, 3)
        return rng.randint(int(least), int(min(most, m.get("high", most))))
    if least == 0 and "low" in m and rng.random() < 0.1:
        return 0.0
    most = m.get("high", m.get("below"))
    if most is not None:
        return round(rng.uniform(least + 1e-3, most - 1e-3), 3)
    usual = abs(f.default) or 0.1
    value = usual * math.exp(rng.uniform(-1.5, 1))
    if least > 0:  # such as p >= 1
        value = least + value
    return float(f"{value:.3g}")


def draw_fields(rng: random.Random, cls: type[Knobs], share: float) -> Values:
    """Some of the fields of a dataclass, with other values than their defaults."""
    kinds = kinds_of(cls)
    defaults = {f.name: f.default for f in dataclasses.fields(cls)}
    values = {
        f.name: draw_value(rng, f, kinds[f.name])
        for f in dataclasses.fields(cls)
        if f.name not in LEFT_OUT and rng.random() < share
    }
    return {name: value for name, value in values.items() if value != defaults[name]}


def draw_method(rng: random.Random, name: str) -> Values:
    """Fields of a method; as few steps as will do."""
    cls, fixed = METHODS.find(name)
    fields = draw_fields(rng, cls, 0.3)
    for f in dataclasses.fields(cls):
        if f.name.endswith("steps") and f.name not in fields:
            fields[f.name] = rng.randint(1, 3)
    return {n: v for n, v in fields.items() if n not in fixed}


def draw_part(rng: random.Random, table: Any, name: str) -> str:
    """A part of a channel, rule or attack, with its options."""
    fields = draw_fields(rng, table.built_in[name], 0.4)
    text = ", ".join(f"{n}={v}" for n, v in fields.items())
    return f"{name}({text})" if fields else name


# -- options of a run ------------------------------------------------------------------------------
def channel(rng: random.Random, _: Combination) -> Values:
    names = rng.sample(list(CHANNELS.built_in), rng.choice([1, 1, 1, 2]))
    if rng.random() < 0.3 and "feedback" not in names:
        names.insert(0, "feedback")
    return {"channel": " + ".join(draw_part(rng, CHANNELS, name) for name in names)}


def rule(rng: random.Random, _: Combination) -> Values:
    parts = {name: issubclass(part, Wrapper) for name, part in RULES.built_in.items()}
    names = [rng.choice([name for name, wraps in parts.items() if not wraps])]
    if rng.random() < 0.25:
        names.insert(0, rng.choice([name for name, wraps in parts.items() if wraps]))
    return {"rule": " + ".join(draw_part(rng, RULES, name) for name in names)}


def attack(rng: random.Random, _: Combination) -> Values:
    names = rng.sample(list(ATTACKS.built_in), rng.choice([1, 1, 1, 2]))
    text = " + ".join(draw_part(rng, ATTACKS, name) for name in names)
    return {"attack": text, "malicious": rng.choice([1, 0.2, 0.4])}


def fits(rng: random.Random, c: Combination) -> bool:
    """Whether this method takes an optimiser; now and then one that does not is given one."""
    return bool(METHODS.find(c.method)[0].traits.optimizers) or rng.random() < 0.1


def optimizer(rng: random.Random, c: Combination) -> Values:
    if not fits(rng, c):
        return {}
    options: Values = {"optimizer": rng.choice(ELEMENTWISE)}
    if options["optimizer"] == "sgd":
        options["optimizer_options"] = rng.choice(["momentum=0.9", "momentum=0.5, nesterov=True"])
    elif options["optimizer"].startswith("adam"):
        options["optimizer_options"] = rng.choice(["", "betas=(0.8, 0.9)", "weight_decay=0.01"])
    if rng.random() < 0.4:
        options["optimizer_state"] = "private"
    return options


def lr_scale(rng: random.Random, c: Combination) -> Values:
    texts = ("*=0.5", "0.*=0.1", "*bias=2", "*weight=0.3")
    return {"lr_scale": rng.choice(texts)} if fits(rng, c) else {}


def kernel(rng: random.Random, c: Combination) -> Values:
    """A kernel; "compiled" takes ten seconds to compile, tests/task/test_kernels.py has it."""
    names = [name for name in KERNELS if name not in ("auto", "compiled")]
    chain = c.model.startswith(("linear", "mlp-", "deep"))
    return {"kernel": rng.choice(names if chain or rng.random() < 0.1 else ["rows", "vmap"])}


def fewer(name: str, *values: int) -> Callable[[random.Random, Combination], Values]:
    """A number of clients that leaves some."""

    def draw_number(rng: random.Random, c: Combination) -> Values:
        possible = [v for v in values if v < len(SIZES[c.clients])]
        return {name: rng.choice(possible)} if possible else {}

    return draw_number


def server_optimizer(rng: random.Random, _: Combination) -> Values:
    options: Values = {"server_lr": rng.choice([0.1, 0.5, 1.5])}
    name = rng.choice(["sgd", "adam", "adagrad", "rmsprop"])
    if name != "sgd":
        options["server_optimizer"] = name
    elif rng.random() < 0.5:
        options["server_options"] = "momentum=0.9"
    return options


def schedule(rng: random.Random, c: Combination) -> Values:
    curves = ["cosine", "linear", "step:1:0.5", "inverse:0.5", "exp:0.8", "warmup:3", "grow:0.3"]
    text = rng.choice(curves)
    if rng.random() < 0.3:
        text = f"{rng.choice(curves)}*{text}"
    if rng.random() < 0.3:
        text = f"{rng.choice(['lr', 'batch', 'server_lr', 'steps'])}={text}"
    return {"schedule": text}


def arrivals(rng: random.Random, _: Combination) -> Values:
    options: Values = {"timing": "arrivals"}
    if rng.random() < 0.6:
        options |= delays(rng, _)
    for name, choices in {
        "concurrency": (2, 3),
        "next_client": ("same",),
        "staleness": tuple(draw_part(rng, STALENESS, name) for name in STALENESS.built_in),
        "buffer": (2, 3),
        "change_from": ("newest",),
    }.items():
        if rng.random() < 0.3:
            options[name] = rng.choice(choices)
    return options


def delays(rng: random.Random, _: Combination) -> Values:
    names = [name for name in DELAYS.built_in if name != "trace"]
    return {"delays": draw_part(rng, DELAYS, rng.choice(names))}


def client_weights(rng: random.Random, c: Combination) -> Values:
    names = [str(IDS[c.ids](k)) for k in range(len(SIZES[c.clients]))]
    return {"client_weights": {name: rng.choice([0.5, 1.0, 4.0]) for name in names}}


def metrics(rng: random.Random, c: Combination) -> Values:
    numbers = c.targets in ("real", "several", "itself")
    fitting = ("rmse", "mae", "r2") if numbers else ("auc", "f1", "log_loss", "brier", "accuracy")
    names = fitting if rng.random() < 0.85 else tuple(METRICS.built_in)
    return {"metrics": ",".join(rng.sample(names, rng.randint(1, 2)))}


def privacy(rng: random.Random, _: Combination) -> Values:
    """A protection with its noise, or a budget for it; noise that can be drawn again."""
    name = rng.choice([*PROTECTIONS.built_in, "central"])
    options: Values = {"noise_source": "seed"}
    if rng.random() < 0.4:
        options |= {"privacy": name, "epsilon": rng.choice([1.0, 5.0, 20.0])}
    else:
        clip = rng.choice(["", ", clip=0.1"]) if name != "distributed" else ""
        options["privacy"] = f"{name}(noise={rng.choice([0.5, 1, 3])}{clip})"
    if name == "samples":
        options["batching"] = "poisson"
    if name == "distributed":
        options["secure_sums"] = True
    if name == "central" and rng.random() < 0.4:
        options["selection"] = "poisson"
    return options


def one_of(name: str, *values: Any) -> Callable[[random.Random, Combination], Values]:
    return lambda rng, _: {name: rng.choice(values)}


# subject -> (probability, how its settings are drawn)
OPTIONS: Mapping[str, tuple[float, Callable[[random.Random, Combination], Values]]] = {
    "channel": (0.3, channel),
    "rule": (0.3, rule),
    "attack": (0.25, attack),
    "optimizer": (0.15, optimizer),
    "lr_scale": (0.05, lr_scale),
    "server_optimizer": (0.15, server_optimizer),
    "schedule": (0.15, schedule),
    "arrivals": (0.12, arrivals),
    "delays": (0.05, delays),
    "engine": (0.02, one_of("engine", "processes")),
    "hosts": (0.15, one_of("hosts", 2, 3)),
    "metrics": (0.25, metrics),
    "batching": (0.4, one_of("batching", "epochs", "full")),
    "batch": (0.3, one_of("batch", 1, 2, 7, 64)),
    "sample": (0.2, fewer("sample", 1, 2, 3)),
    "quorum": (0.05, one_of("quorum", 2)),
    "held_out": (0.1, fewer("held_out", 1, 2)),
    "client_weights": (0.12, client_weights),
    "clip": (0.1, one_of("clip", 0.05, 0.01)),
    "weight_decay": (0.08, one_of("weight_decay", 0.1, 0.01)),
    "finetune": (0.08, lambda rng, _: {"finetune_steps": 2, "finetune_lr": 0.05}),
    "statistics": (0.05, one_of("statistics", "private")),
    "dtype": (0.25, one_of("dtype", "float64")),
    "kernel": (0.25, kernel),
    "chunk": (0.08, one_of("chunk", 1, 2)),
    "eval_every": (0.08, one_of("eval_every", 0, 2)),
    "eval_train": (0.05, one_of("eval_train", True)),
    "patience": (0.04, lambda rng, _: {"patience": 1}),
    "keep_best": (0.04, one_of("keep_best", True)),
    "metric": (0.04, one_of("metric", "loss", "accuracy")),
    "seeds": (0.03, one_of("seeds", 2)),
    "seed": (0.3, one_of("seed", 1, 2, 3)),
    "privacy": (0.2, privacy),
}


def draw(seed: int, number: int) -> Combination:
    """Combination `number` under this seed."""
    rng = random.Random(f"{seed}/{number}")
    method = rng.choice(list(METHODS.built_in))
    model = rng.choice(list(ZOO))
    targets = rng.choice(ZOO[model].targets)
    losses = [
        name
        for name, loss in LOSSES.items()
        if targets in loss.targets
        and ZOO[model].outputs in loss.outputs
        # probabilities for BCELoss; now and then other outputs, which it refuses
        and (name != "BCELoss" or model == "probability" or rng.random() < 0.1)
    ]
    clients = rng.choice(["even", "even", "unequal", "unequal", *SIZES])
    of_datasets = ZOO[model].inputs == "vector" and rng.random() < 0.05
    source = "datasets" if of_datasets and targets != "class and value" else "arrays"
    base = Combination(
        method,
        draw_method(rng, method),
        model,
        targets,
        rng.choice(losses),
        clients,
        rng.choice(list(IDS)),
        source,
    )
    options = {
        name: values(rng, base)
        for name, (probability, values) in OPTIONS.items()
        if rng.random() < 0.7 * probability
    }
    options = {name: values for name, values in options.items() if values}
    return dataclasses.replace(base, options=options)

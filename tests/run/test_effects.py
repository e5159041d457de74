"""Every setting changes something, or a word is said before the run: a table of all of them."""

import contextlib
import dataclasses
import io
import json
from typing import Any

import pytest
from torch import nn

import idiolect as il
from idiolect.core.knobs import kinds_of
from idiolect.methods import make_method
from idiolect.run.settings import MACHINE, SAFEGUARD, Settings
from idiolect.testing import federation, private_of, state_of

DATA = federation()
VALUES: dict[str, Any] = {  # where a value cannot be made from the field's own bounds
    "client_weights": {client: 1.0 + i for i, client in enumerate(DATA.ids)},
    "schedule": "exp:0.5",
    "optimizer": "adam",
    "optimizer_options": "momentum=0.9",
    "lr_scale": "0.*=0.5",
    "server_optimizer": "adam",
    "server_options": "momentum=0.5",
    "channel": "half",
    "rule": "median",
    "delays": "exponential(mean=2)",
    "staleness": "polynomial(a=0.5)",
    "attack": "sign-flip",
    "metrics": "f1",
    "metric": "loss",
    "positive": "1",
    "target_value": 0.0,
    "patience_metric": "accuracy",
    "dtype": "float32",
    "data_seeds": 2,
    "augment": "flip",
    "selection": "power-of-choice",
    "privacy": "local(noise=1)",
    "secure_sums": "secagg(clip=0.1)",
}
BASES: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {}),
    ("local", {}),
    ("lp-proj:dim=5", {"batching": "full"}),
    ("ditto", {"sample": 1}),
    ("fedavg", {"timing": "arrivals", "sample": 3, "delays": "exponential(mean=1)"}),
]
TIMES = ("seconds", "settings", "environment", "fields", "run", "rounds_per_second")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def other(f: dataclasses.Field, kind: type) -> Any:
    """A value that is not the default."""
    if f.name in VALUES:
        return VALUES[f.name]
    if "choices" in f.metadata:
        return next(c for c in f.metadata["choices"] if c != f.default)
    if kind is bool:
        return not f.default
    if kind is int:
        return f.default + 1
    assert kind is float, f"{f.name}: no value to try; give one in VALUES"
    return f.default / 2 if f.default else 0.01


def without_times(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: without_times(v) for k, v in tree.items() if k not in TIMES}
    if isinstance(tree, (list, tuple)):
        return [without_times(v) for v in tree]
    return tree


def outcome(method: str, settings: dict[str, Any]) -> tuple[Any, str]:
    """All figures and models of a run, None where it was refused; and what was said."""
    words = io.StringIO()
    with contextlib.redirect_stderr(words):
        try:
            result = il.run(
                make_method_of(method),
                il.Task(net),
                DATA,
                **{"rounds": 2, "batch": 8, "dtype": "float64", **settings},
            )
        except il.SettingError as error:
            return None, str(error)
    models = {**state_of(result), **private_of(result)}
    bits = [(name, t.numpy().tobytes()) for name, t in sorted(models.items())]
    tables = without_times([result.summary(), result.rounds_table()])
    return (bits, json.dumps(tables, default=str, sort_keys=True)), words.getvalue()


def make_method_of(text: str) -> il.Method:
    name, _, fields = text.partition(":")
    return make_method(name, **dict(f.split("=") for f in fields.split(",") if f))


@pytest.mark.parametrize(("method", "base"), BASES, ids=lambda v: str(v)[:40])
def test_a_setting_acts_or_a_word_is_said(method, base):
    expected, said = outcome(method, base)
    assert expected is not None, said
    kinds = kinds_of(Settings)
    silent = []
    for f in dataclasses.fields(Settings):
        roles = f.metadata.get("roles", ())
        if f.name in base or MACHINE in roles or SAFEGUARD in roles:
            continue
        result, words = outcome(method, {**base, f.name: other(f, kinds[f.name])})
        acts = result is not None and result != expected
        if not acts and f.name not in words.replace(said, ""):
            silent.append(f"{f.name}: {words.splitlines()[:1]}")
    assert not silent


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("fedavg:weighting=equal", {"rule": "median", "sample": 2}, "'median' has no effect on 2"),
        ("fedavg:weighting=equal", {"rule": "mda(f=0)"}, "whose mean it gives"),
        ("fedavg", {"channel": "feedback"}, "'feedback' has no effect"),
        ("fedavg:steps=1", {"schedule": "steps=exp:0.9"}, "the method is the same in every round"),
        ("fedavg:steps=1", {"optimizer_options": "momentum=0.9"}, "momentum has no effect on one"),
        ("lp-proj:dim=1", {"channel": "topk"}, "all 1 numbers of a message are sent"),
        ("fedproto", {"server_lr": 0.5}, "fedproto, whose server keeps no shared model"),
    ],
)
def test_what_has_no_effect_by_arithmetic_is_said(method, settings, words):
    result, said = outcome(method, settings)
    assert result is not None
    assert words in said


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", {"rule": "median"}),
        ("fedavg", {"rule": "norm-bound(bound=1) + mean"}),
        ("fedavg", {"channel": "feedback + sign"}),
        ("fedavg:steps=2", {"optimizer_options": "momentum=0.9"}),
        ("fedavg:steps=1", {"optimizer_options": "momentum=0.9, nesterov=True"}),
        ("fedavg", {"schedule": "steps=exp:0.5"}),
        ("fedper", {"server_lr": 0.5}),
    ],
)
def test_nothing_is_said_of_what_acts(method, settings):
    result, said = outcome(method, settings)
    assert result is not None
    assert "no effect" not in said

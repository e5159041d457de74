"""Rules by name: what is refused and why, the user's own rules, and a run that takes one."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import idiolect as il
from idiolect.core.knobs import SettingError
from idiolect.run.settings import Settings
from idiolect.server.rules import RULES, Rule, TooFew, Wrapper, parse_rule, rule_text
from server.rules.common import ALL

BUILT_IN = RULES.built_in


@pytest.mark.parametrize(
    ("text", "n", "message"),
    [
        (
            "krum(f=4)",
            10,
            r"^f must be at most 3 for krum with 10 clients \(n >= 2 f \+ 3\), got 4$",
        ),
        ("trimmed-mean(f=5)", 10, r"^f must be at most 4 .* \(n >= 2 f \+ 1\), got 5"),
        ("bulyan(f=2)", 10, r"^f must be at most 1 .* \(n >= 4 f \+ 3\), got 2"),
        ("nnm(f=5) + median", 10, r"^f must be at most 4 for nnm with 10 clients"),
        ("krum", 2, r"^rule: krum needs at least 3 clients .* not 2"),
        ("krum(f=2)", 2, r"^rule: krum needs at least 7 clients .* not 2"),
        (
            "multi-krum(f=1, m=9)",
            8,
            r"^m must be at most 8 for multi-krum with 8 clients, got 9",
        ),
        ("median", 0, r"^rule: median needs at least 1 client, not 0"),
        (
            "bucketing(size=2) + krum(f=2)",
            10,
            r"^f must be at most 1 for krum with 5 clients .* got 2; .* buckets of 10 clients",
        ),
        ("centred-clipping", 0, r"^rule: centred-clipping needs at least 1 client, not 0"),
    ],
)
def test_too_few_clients_are_refused_when_asked_and_when_called(text, n, message):
    rule = parse_rule(text)
    with pytest.raises(TooFew, match=message):
        rule.check(n)
    with pytest.raises(TooFew, match=message):
        rule(torch.zeros(n, 2), torch.ones(n))
    with pytest.raises(TooFew, match=message):
        rows = torch.zeros(n, 2)
        rule.combine_with_state(rows, torch.ones(n), rule.blank(2, rows))


def test_mda_refuses_more_subsets_than_it_can_try_and_says_what_else_to_do():
    parse_rule("mda(f=3)").check(60)
    message = r"^f must be at most 3 for mda with 60 clients .* got 29: \d+ subsets .*nnm"
    with pytest.raises(SettingError, match=message):
        parse_rule("mda").check(60)


@pytest.mark.parametrize("form", [parse_rule, lambda text: Settings(rule=text)])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("average", "rule: 'average' is unknown"),
        ("crum", "did you mean 'krum'"),
        ("krum(g=2)", "rule krum setting: 'g' is unknown"),
        ("krum(f=-2)", "f must be a whole number >= -1, got -2"),
        ("krum(f=1.5)", "f must be a whole number >= -1, got 1.5"),
        ("krum(variant=public)", "variant must be one of 'paper', 'perfed', got 'public'"),
        ("centred-clipping(tau=-1)", "tau must be a number >= 0, got -1.0"),
        ("centred-clipping(start=zero)", "start must be one of 'last', 'median', got 'zero'"),
        ("bucketing(size=0) + mean", "size must be a whole number >= 1, got 0"),
        ("bucketing", "rule must be wrappers and then a rule (mean, median"),
        (
            "krum + median",
            "rule must be one rule, with no others than bucketing, nnm, norm-bound before it",
        ),
        ("median + bucketing", "rule must be wrappers and then a rule"),
        ("krum(f=2", "rule must be NAME or NAME(option=value, ...)"),
        ("", "rule: '' is unknown"),
        ("math:pi", "rule must be a subclass of Rule or Wrapper, got 'math:pi'"),
    ],
)
def test_what_is_no_rule_is_refused_with_what_would_be(text, message, form):
    with pytest.raises(SettingError) as error:
        form(text)
    assert message in str(error.value)


def test_every_rule_and_wrapper_is_tested_here():
    used = " ".join(ALL)
    assert all(name in used for name in BUILT_IN)


def test_the_table_has_every_part_under_its_title():
    assert all(issubclass(part, (Rule, Wrapper)) for part in BUILT_IN.values())
    assert all(part.title == name for name, part in BUILT_IN.items())


@dataclass(frozen=True)
class Largest(Rule):
    """A user's own rule, with nothing but what it must have."""

    def combine(self, rows, weights):
        return rows.amax(0)


@dataclass(frozen=True)
class Smallest(Rule):
    """Another, under a title that is taken."""

    title = "krum"

    def combine(self, rows, weights):
        return rows.amin(0)


@pytest.mark.parametrize(("own", "value"), [(Largest, 3.0), (Smallest, 1.0)])
def test_a_users_own_rule_needs_no_title_of_its_own(own, value):
    name = f"{own.__module__}:{own.__qualname__}"
    rule = parse_rule(f"norm-bound(bound=100) + {name}")
    rows = torch.tensor([[1.0], [2.0], [3.0]])
    assert rule(rows, torch.ones(3)).tolist() == [value]
    assert rule_text(rule) == f"norm-bound(bound=100.0) + {name}"
    assert isinstance(parse_rule("krum"), BUILT_IN["krum"])


def test_the_error_of_a_rule_without_a_title_has_its_class():
    with pytest.raises(TooFew, match=r"^rule: Largest needs at least 1 client, not 0"):
        Largest().check(0)


@pytest.mark.parametrize(
    "text", ["median", "krum(f=0)", "nnm + trimmed-mean", "bucketing(size=2) + median"]
)
def test_a_run_takes_a_rule_by_its_line(text):
    federation = il.data.load("synthetic", clients=6, samples=60)
    task = il.Task(torch.nn.Linear(60, 10))
    result = il.run(il.FedAvg(), task, federation, rounds=2, sample=4, eval_every=0, rule=text)
    assert np.isfinite(result.summary()["accuracy"]["mean"])

"""What the page of rules says: measured again where that is cheap, and the same as stored."""

import json
from itertools import permutations
from pathlib import Path

import pytest
import torch

from idiolect_papers.own import rules

STORED = json.loads((Path(__file__).parents[3] / "docs" / "rules.json").read_text())


def test_the_spread_is_that_of_definition_2():
    x = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pairs = [float((a - b).square().sum()) for a, b in permutations(x, 2)]
    assert rules.spread(x) == pytest.approx(sum(pairs) / (7 * 6))


@pytest.mark.parametrize("kind", rules.HONEST)
def test_honest_rows_have_spread_and_mean_of_length_1(kind):
    x = rules.honest_rows(kind, 18)
    assert rules.spread(x) == pytest.approx(1)
    assert float(x.mean(0).norm()) == pytest.approx(1)


@pytest.mark.parametrize("attack", rules.ATTACKS)
def test_an_attack_makes_one_row_per_malicious_client(attack):
    x = rules.honest_rows("alike", 8)
    assert all(rows.shape == (3, x.shape[1]) for rows in rules.ATTACKS[attack](x, 3))


@pytest.mark.parametrize("text", ["median", "krum(f={f})", "geometric-median"])
def test_rules_that_answer_with_one_group_get_worse_as_one_over_delta(text):
    few = rules.worst(text, 20, 1)
    many = rules.worst(text, 80, 1)
    assert many[0] > 3 * few[0]
    assert many[1] == "two clusters"


@pytest.mark.parametrize(
    "text",
    ["trimmed-mean(f={f})", "multi-krum(f={f})", "nnm(f={f}) + median", "nnm(f={f}) + krum(f={f})"],
)
def test_rules_that_average_what_is_left_do_not(text):
    few = rules.worst(text, 20, 1)
    many = rules.worst(text, 80, 1)
    assert many[0] < few[0] < 2


@pytest.mark.parametrize(
    "text", ["median", "trimmed-mean(f={f})", "krum(f={f})", "centred-clipping(tau=1)"]
)
def test_the_stored_table_is_what_the_code_measures(text):
    title = "share of malicious clients"
    stored = STORED[title][rules.label(text)]
    for column, found in rules.RuleJob(title, text).train().items():
        assert found[0] == pytest.approx(stored[column][0], rel=1e-2)

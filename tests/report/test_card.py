"""The model card: from the record alone, and true to it."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest
from torch import nn

import idiolect as il
from idiolect.cli.main import main
from idiolect.core.knobs import SettingError
from idiolect.host.scores import wilson
from idiolect.report.card import MOST_CLIENTS, ClientVerdict


def frame(rows=1200, clients=("north", "south|<b>", "[east](x)"), values=False):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((rows, 2)), columns=["age", "dose_mg"])
    table["site"] = np.asarray(clients)[np.arange(rows) % len(clients)]
    signal = table["age"] + 0.3 * rng.standard_normal(rows)
    table["y"] = signal if values else np.where(signal > 0, "yes", "no")
    return table


def data(**options):
    return il.Federation.from_frame(frame(**options), client="site", target="y")


def trained(federation, method="fedavg", outputs=2, **settings):
    loss = "cross_entropy" if outputs == 2 else "mse"
    task = il.Task(lambda: nn.Linear(2, outputs), loss)
    return il.run(method, task, federation, rounds=5, **settings)


def table_of(card):
    """The rows of the table of clients, by client."""
    section = card.split("## For whom")[1].split("## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if line[:1] == "|"]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows[2:]}


def test_the_card_has_the_facts_of_the_record():
    federation = data()
    result = trained(federation, seeds=2, batch=16, metrics="recall")
    card = result.card()
    splits = ("train", "valid", "test")
    samples = ", ".join(f"{int(federation.sizes(s).sum()):,} {s}" for s in splits)
    for words in (
        "# Model card: fedavg on table",
        "seeds 0, 1",
        "clients: 3",
        f"samples: {samples}",
        "classes: no, yes",
        r"columns used: age, dose\_mg",
        federation.fingerprint(),
        "batch = 16",
        r"loss: cross\_entropy",
        "lr = 0.3",
        "recall (of class 'yes' (by its name))",
        f"torch: {result.record.environment['packages']['torch']}",
        result.record.environment["when"][:10],
    ):
        assert words in card, words


def test_intervals_of_clients_are_those_of_wilson_and_decide_the_verdict():
    result = trained(data())
    rows = table_of(result.card())
    row = next(r for r in result.clients_table() if r["client"] == "north")
    n, accuracy = row["test_samples"], row["test_accuracy"]
    want = binomtest(round(accuracy * n), n).proportion_ci(method="wilson")
    assert rows["north"][2] == f"{want.low:.4f} to {want.high:.4f}"
    assert rows["north"][4] == "better"
    verdicts = [ClientVerdict("a", 10, 0.5, 0.3, 0.7, c).verdict for c in (0.2, 0.5, 0.8, math.nan)]
    assert verdicts == ["better", "cannot tell", "worse", "unknown"]
    assert all(map(math.isnan, wilson(0, 0)))


def test_names_of_anyone_are_text_in_the_card():
    card = trained(data()).card()
    assert r"south\|\<b\>" in card and "<b>" not in card.replace(r"\<b\>", "")
    assert r"\[east\](x)" in card


def test_local_says_who_would_do_better_alone_and_must_be_of_the_same_data():
    federation = data()
    result, alone = trained(federation), trained(federation, "local")
    card = result.card(local=alone)
    assert "gain over Local" in card and "There is no run of Local" not in card
    costs = [r.seeds[0].gradients_per_client for r in (alone, result)]
    words = "Against training alone (Local, {:.0f} gradients per client; this run {:.0f})"
    assert words.format(*costs) in card
    assert "There is no run of Local beside this one" in result.card()
    with pytest.raises(SettingError, match=r"local must be a run of the method .local., got"):
        result.card(local=result)
    with pytest.raises(SettingError, match="on the same data"):
        result.card(local=trained(data(rows=900), "local"))


def test_a_regression_has_a_card_with_its_loss_by_client():
    card = trained(data(values=True), outputs=1).card()
    assert "none: real targets" in card and "the record has no interval for it" in card
    assert len(table_of(card)) == 3


def test_limits_are_those_of_the_run():
    names = tuple(f"c{k}" for k in range(60))
    card = trained(data(clients=names)).card()
    assert f"The {MOST_CLIENTS} clients that are served worst, of 60" in card
    assert len(table_of(card)) == MOST_CLIENTS
    assert "60 clients have fewer than 30 test samples" in card
    assert "One seed: how much figures vary with the seed was not measured" in card
    many = trained(data(), seeds=2).card()
    assert "One seed" not in many and "fewer than 30" not in many


def test_the_command_writes_what_the_result_writes_and_finds_the_local_of_a_comparison(
    tmp_path, capsys
):
    path = tmp_path / "table.csv"
    frame().to_csv(path, index=False)
    command = ["compare", "fedavg", "--data", "table", "--path", str(path), "--client", "site"]
    command += ["--target", "y", "--rounds", "2", "--no-trees", "--directory", str(tmp_path / "c")]
    assert main(command) == 0
    run = tmp_path / "c" / "0-fedavg"
    capsys.readouterr()
    assert main(["card", str(run)]) == 0
    text = capsys.readouterr().out
    assert "gain over Local" in text and "client column: site" in text
    result, local = il.load(run), il.load(tmp_path / "c" / "1-local")
    assert result.card(tmp_path / "card.md", local) == text
    assert (tmp_path / "card.md").read_text() == text
    assert main(["card", str(run), "-o", str(tmp_path / "again.md"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"card": str(tmp_path / "again.md")}
    assert (tmp_path / "again.md").read_text() == text
    assert main(["card", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["card"] == text
    assert main(["card", str(tmp_path / "c")]) == 2
    assert "is a comparison; a card is of one run inside" in capsys.readouterr().err

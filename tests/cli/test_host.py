"""`idiolect host`: what the owner of the data types, and what it says."""

import json
import re
import signal
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from deploy.consents import consent_to, contract_of
from deploy.site.common import Direct, form, server_for, synthetic, table, with_table
from deploy.sites import Process, Told, agreement, plan_of
from engine.loopback import remote_rounds
from helpers import rewrite
from idiolect.cli.main import main
from idiolect.deploy.models import load_exported
from idiolect.deploy.site.rules import Rules
from idiolect.host.calls import Call
from idiolect.run.prepare import prepare
from idiolect.run.session import Session


def said(capsys, *arguments, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["host", *map(str, arguments)]) == code
    found = capsys.readouterr()
    return found.out if code == 0 else found.err


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A site with a table of three wards, after two rounds of Ditto, and its process at work."""
    place = tmp_path_factory.mktemp("host")
    rules = {"min_samples": 1, "client_names": "own", "max_rounds": 50}
    at = with_table(place / "state", table(), rules, client="ward")
    plan = plan_of("ditto", dtype="float32")
    consent_to(at.path, plan, contract_of(form()))
    at.ask(agreement(plan, form()))
    data = at.site.agreed.federation
    task = plan.make_task(data)
    session = Session(prepare(plan.make_method(), task, data, plan.make_settings()), 0, 77)
    ids = [0, 1, 2]
    facts = {"wire_ids": ids, "checksum": session.contract.checksum, "validation": True}
    assert at.ask(Call("enrol", facts)).kind == "status"
    told = Told(torch.tensor(ids), SimpleNamespace(metrics=()))
    engine = remote_rounds(session.server, [told], Direct([at]))
    for _ in range(2):
        engine.advance()
    engine.evaluate(torch.tensor(ids), ("test",))
    return at, engine


# -- status ----------------------------------------------------------------------------------------
def test_status_says_in_plain_words_what_has_left(trained, capsys):
    at, _ = trained
    text = said(capsys, "status", "--state", at.path)
    usage = at.site.usage
    assert "north is running (process " in text
    assert "Run 0000004d: ditto" in text and "3 clients, 2 rounds done" in text
    assert f"Left so far: {usage.numbers:,} numbers in {usage.messages} replies" in text
    assert "Figures of evaluations that left: accuracy (1 time), loss (1 time)" in text
    assert "Used of what you allow: 2 of 50 rounds" in text
    assert "messages.csv" in text


def test_status_as_plain_data(trained, capsys):
    at, _ = trained
    found = json.loads(said(capsys, "status", "--state", at.path, "--json"))
    assert found["running"] and found["left"]["rounds"] == 2
    assert found["run"]["rounds"] == 2 and found["run"]["clients"] == ["er", "icu", "surgery"]


def test_status_before_anything_has_come(tmp_path, capsys):
    at = synthetic(tmp_path / "s")
    at.site.folder.close()
    text = said(capsys, "status", "--state", at.path)
    assert "north is not running" in text and "It has taken part in no run yet." in text
    assert "Agreed to: nothing (the owner has agreed to nothing yet)" in text
    assert "Last contact: never" in text


def test_commands_on_no_state_directory_say_so(tmp_path, capsys):
    for arguments in (["status"], ["export", "--to", tmp_path / "x"], ["predict", "rows.csv"]):
        text = said(capsys, *arguments, "--state", tmp_path / "none", code=2)
        assert "is no state directory of a site" in text


# -- the owner's models ----------------------------------------------------------------------------
def test_an_exported_model_is_the_one_that_was_trained(trained, capsys, tmp_path):
    at, engine = trained
    text = said(capsys, "export", "--state", at.path, "--to", tmp_path / "out")
    assert "3 models as after round 2" in text
    found = load_exported(tmp_path / "out")
    host = at.site.service.host
    down = engine.server.message(2)
    frame = table(20, seed=5)
    for k, ward in enumerate(("er", "icu", "surgery")):
        x = host.personal(2, down, k)
        module = host.contract.task.module_of(x)
        weights = found.module(ward).state_dict()
        for name, t in module.state_dict().items():
            assert torch.equal(t, weights[name])
        inputs = torch.from_numpy(host.data.preparation.apply(frame, clients=ward))
        chosen = module(inputs).argmax(-1)
        labels = [("no", "yes")[c] for c in chosen]
        assert found.predict(frame, ward).labels.tolist() == labels
    with pytest.raises(Exception, match="attic"):
        found.module("attic")
    assert all(p.stat().st_mode & 0o077 == 0 for p in (tmp_path / "out").iterdir())


def test_predictions_are_in_the_owners_own_labels(trained, capsys, tmp_path):
    at, _ = trained
    rows = table(12, seed=9).drop(columns="ill")
    rows.to_csv(tmp_path / "rows.csv", index=False)
    text = said(capsys, "predict", tmp_path / "rows.csv", "--state", at.path)
    lines = text.splitlines()
    assert lines[0] == "ward,label,probability no,probability yes" and len(lines) == 13
    assert {line.split(",")[1] for line in lines[1:]} <= {"no", "yes"}
    one = said(capsys, "predict", tmp_path / "rows.csv", "--state", at.path, "--client", "icu")
    assert one.splitlines()[0] == "label,probability no,probability yes"
    out = tmp_path / "out.csv"
    said(capsys, "predict", tmp_path / "rows.csv", "--state", at.path, "-o", out)
    assert len(pd.read_csv(out)) == 12
    found = json.loads(said(capsys, "predict", tmp_path / "rows.csv", "--state", at.path, "--json"))
    assert found["classes"] == ["no", "yes"] and len(found["labels"]) == 12


def test_a_model_for_other_programs(trained, capsys, tmp_path):
    at, _ = trained
    arguments = ("export", "--state", at.path, "--to", tmp_path / "o", "--format", "pt2")
    assert "say whose model" in said(capsys, *arguments, code=2)
    said(capsys, *arguments, "--client", "er")
    about = json.loads((tmp_path / "o" / "client-000000.json").read_text())
    assert about["client"] == "er" and about["features"] == ["age", "bp"]
    assert about["classes"] == ["no", "yes"]


@pytest.mark.parametrize("more", [(), ("--format", "pt2")])
def test_a_model_that_is_not_finite_is_not_exported(tmp_path, capsys, more):
    """As earlier versions may have stored it: the rows are spoilt, and their file is sound."""
    at = synthetic(tmp_path / "s")
    _, engine = server_for(at)
    engine.advance()
    host, durable = at.site.service.host, at.site.service.durable
    rows = {n: t.clone() for n, t in host.all_rows().items()}
    rows["v"][0, 3] = float("nan")
    host.store.write(torch.arange(4), 1, rows)
    durable.concluded(1)
    client = ("--client", "0") if more else ()
    out = tmp_path / "out"
    text = said(capsys, "export", "--state", at.path, "--to", out, *more, *client, code=1)
    assert "is not finite after round 2" in text
    assert not out.exists()


def test_models_of_an_earlier_run_can_still_be_exported(tmp_path, capsys):
    at = synthetic(tmp_path / "s")
    for run in (1, 2):
        _, engine = server_for(at, plan_of("ditto", dtype="float32"), run=run)
        engine.advance()
    at.site.folder.close()
    for run in ("1", "2"):
        said(capsys, "export", "--state", at.path, "--to", tmp_path / run, "--run", run)
    one, two = (load_exported(tmp_path / run) for run in ("1", "2"))
    assert one.about.run == "00000001" and two.about.run == "00000002"
    assert len(one.files) == 4
    text = said(capsys, "export", "--state", at.path, "--to", tmp_path / "x", "--run", "9", code=2)
    assert "has taken part in: 00000001, 00000002" in text


def test_there_is_no_model_before_the_first_message(tmp_path, capsys):
    at = synthetic(tmp_path / "s")
    text = said(capsys, "export", "--state", at.path, "--to", tmp_path / "x", code=2)
    assert "has taken part in: none" in text
    server_for(at)
    text = said(capsys, "export", "--state", at.path, "--to", tmp_path / "x", code=2)
    assert "no message of a server has come" in text


def test_an_exported_folder_may_come_from_anyone(trained, tmp_path, capsys):
    at, _ = trained
    said(capsys, "export", "--state", at.path, "--to", tmp_path / "out")
    rewrite(tmp_path / "out" / "model.json", lambda about: about["plan"].update(model="os:system"))
    with pytest.raises(ValueError, match="code outside idiolect"):
        load_exported(tmp_path / "out").module("er")
    rewrite(tmp_path / "out" / "clients.json", lambda _: {"../../etc/passwd": "er"})
    with pytest.raises(ValueError, match=r"clients\.json"):
        load_exported(tmp_path / "out")


# -- start -----------------------------------------------------------------------------------------
BAD = {
    "no data": (["--state", "s"], "data: name your table"),
    "no file": (["--state", "s", "--data", "none.csv"], "there is no file"),
    "no state": (["--data", "synthetic"], "--state"),
    "an unknown data set": (["--state", "s", "--data", "syntetic"], "did you mean 'synthetic'"),
    "a bad rule": (["--state", "s", "--data", "synthetic", "--min-samples", "0"], "--min-samples"),
    "a bad flag": (["--state", "s", "--data", "synthetic", "--max-round", "3"], "--max-rounds"),
    "a bad name": (["--state", "s", "--data", "synthetic", "--site", "a/b"], "got 'a/b'"),
    "no device": (["--state", "s", "--data", "synthetic", "--device", "cuda:77"], "device"),
    "a config": (["--config", "bad.toml"], "config: bad.toml: rules setting"),
    "code": (["--state", "s", "--data", "synthetic", "--allow-code", "a b"], "--allow-code"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_start_that_cannot_be_says_why(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text('[data]\nname = "synthetic"\n[rules]\nmax_round = 3\n')
    arguments, reason = BAD[name]
    assert reason in said(capsys, "start", *arguments, code=2)


def test_an_unknown_command_suggests_the_nearest(capsys):
    assert "did you mean 'status'" in said(capsys, "statsu", code=2)


def test_help_lists_the_rules(capsys):
    with pytest.raises(SystemExit):
        main(["host", "start", "--help"])
    text = capsys.readouterr().out
    assert "what may leave:" in text and "--max-numbers" in text and "--min-samples" in text


def test_a_site_with_a_table_from_the_command_line(tmp_path):
    table(200).to_csv(tmp_path / "visits.csv", index=False)
    arguments = ("--data", tmp_path / "visits.csv", "--target", "ill", "--site", "Bonn")
    site = Process(tmp_path / "s", *arguments)
    site.start()
    try:
        consent_to(site.state, plan_of("fedavg"), contract_of(form()))
        census = site.ask(agreement(plan_of("fedavg"), form()))
        assert [c["id"] for c in census.facts["clients"]] == ["Bonn"]
    finally:
        code, text = site.stop(signal.SIGINT)
    assert code == 0
    assert "visits.csv: 200 rows, 5 columns" in text
    assert f"Bonn waits for a federation at {site.socket}" in text
    assert "agreed to run 0000004d: fedavg" in text
    (tmp_path / "site.toml").write_text('[site]\nsite = "Aachen"\n[rules]\nmax_rounds = 3\n')
    code, text = Process(tmp_path / "s", *arguments[:4], "--config", tmp_path / "site.toml").end()
    assert code == 2 and "site must be 'Bonn'" in text


def test_the_page_for_owners_names_every_rule_and_no_flag_that_there_is_not(capsys):
    page = (Path(__file__).parents[2] / "docs" / "host.md").read_text()
    helps = ""
    for command in ("agree", "start", "key", "status", "export", "predict"):
        arguments = ["--data", "table"] if command in ("agree", "start") else []
        with pytest.raises(SystemExit):
            main(["host", command, *arguments, "--help", "all"])
        helps += capsys.readouterr().out
    of_data_sets = {"--clients", "--help"}
    for flag in set(re.findall(r"--[a-z][a-z-]+", page)) - of_data_sets:
        assert re.search(rf"{flag}\b", helps), flag
    for f in fields(Rules):
        assert f"| `--{f.name.replace('_', '-')}` |" in page

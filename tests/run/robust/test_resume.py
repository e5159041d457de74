"""Interrupted runs continue to exactly the same bits.

With a channel that remembers, with malicious clients and a rule that draws.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import idiolect as il
from idiolect import SettingError
from idiolect.core.types import prefixed, under
from run.robust.common import STATEFUL, by_wire_id, everything, run


def continued(folder: Path, method: str, back: int = 1, **settings) -> il.Result:
    """The run as if it had been stopped `back` rounds before its end."""
    run(method, directory=folder, checkpoint_every=1, **settings)
    saved = sorted((folder / "checkpoints" / "seed-0").iterdir())
    for newest in saved[len(saved) - back :]:
        shutil.rmtree(newest)
    return run(method, directory=folder, resume=True, checkpoint_every=1, **settings)


def same(a: il.Result, b: il.Result) -> None:
    x, y = everything(a), everything(b)
    assert x.keys() == y.keys()
    for n, t in x.items():
        assert torch.equal(t.nan_to_num(77.0), y[n].nan_to_num(77.0)), n
    for one, two in zip(a.seeds, b.seeds, strict=True):
        assert repr(one.history) == repr(two.history) and one.collapsed == two.collapsed
        before = a.session(one.seed)
        after = b.session(two.seed)
        assert torch.equal(before.people.malicious, after.people.malicious)
        counts, fates = before.server.ledger.save()
        assert fates == after.server.ledger.save()[1]
        for n, t in counts.items():
            assert torch.equal(t, after.server.ledger.counts[n]), n


GIVEN = {"rounds": 4, "eval_every": 1, "sample": 4}
HARD = {"attack": "sign-flip(std=1)", "malicious": 2, "rule": "bucketing(size=2) + median"}


@pytest.mark.parametrize("channel", STATEFUL)
@pytest.mark.parametrize("method", ["fedprox-soft", "scaffold"])
def test_a_run_through_a_channel_continues_exactly(method, channel, tmp_path):
    settings = GIVEN | HARD | {"channel": channel}
    same(
        continued(tmp_path / "run", method, **settings), run(method, checkpoint_every=1, **settings)
    )


@pytest.mark.parametrize(
    "channel", ["lbgm(threshold=0.5)", "feedback + topk(share=0.2)", STATEFUL[3]]
)
def test_memories_in_a_file_continue_exactly(channel, tmp_path):
    settings = GIVEN | {"channel": channel, "memory": 1e-7, "chunk": 4}
    resumed = continued(tmp_path / "run", "fedprox-soft", **settings)
    (host,) = resumed.session().hosts
    assert host.coder.file_backed
    same(resumed, run("fedprox-soft", checkpoint_every=1, **settings))


@pytest.mark.parametrize("attack", ["mimic", "alie", "data-poison", "gaussian"])
def test_malicious_clients_send_the_same_after_an_interruption(attack, tmp_path):
    settings = GIVEN | {
        "attack": attack,
        "malicious": 0.34,
        "channel": "qsgd(levels=8)",
        "rule": "krum",
    }
    same(
        continued(tmp_path / "run", "lp-proj-1", back=2, **settings),
        run("lp-proj-1", checkpoint_every=1, **settings),
    )


def test_a_collapsed_run_continues_exactly(tmp_path):
    settings = {
        "rounds": 12,
        "eval_every": 1,
        "sample": 6,
        "attack": "sign-flip(std=100)",
        "malicious": 3,
    }
    resumed = continued(tmp_path / "run", "fedavg", **settings)
    assert resumed.summary()["collapsed"][0]
    same(resumed, run("fedavg", checkpoint_every=1, **settings))


@pytest.mark.parametrize("channel", STATEFUL)
def test_a_checkpoint_holds_what_the_channel_remembers(channel, tmp_path):
    result = run("fedavg", directory=tmp_path / "run", channel=channel, **GIVEN)
    folder = max((tmp_path / "run" / "checkpoints" / "seed-0").iterdir())
    session = result.session()
    at_clients = load_file(folder / "host-0" / "channel.safetensors")
    at_server = load_file(folder / "server.safetensors")
    hashed = json.loads((folder / "checkpoint.json").read_text())["sha256"]
    assert {"host-0/channel.safetensors", "server.safetensors"} <= hashed.keys()
    now = {
        **prefixed(by_wire_id(session, "coder"), "client."),
        **prefixed(session.server.channel_state, "server."),
        **prefixed(session.server.memory.rows, "memory."),
    }
    saved = {
        **prefixed(under(at_clients, "rows."), "client."),
        **prefixed(under(at_server, "channel."), "server."),
        **prefixed(under(at_server, "memory.rows."), "memory."),
    }
    assert saved.keys() == now.keys() and all(torch.equal(t, now[n]) for n, t in saved.items())
    assert any(t.any() for t in saved.values())


def test_a_checkpoint_of_a_run_without_a_channel_holds_nothing_of_one(tmp_path):
    run("fedavg", directory=tmp_path / "run", **GIVEN)
    for path in (tmp_path / "run").rglob("channel.safetensors"):
        assert not under(load_file(path), "rows.")
    for path in (tmp_path / "run").rglob("server.safetensors"):
        saved = load_file(path)
        assert not under(saved, "channel.") and not under(saved, "memory.rows.")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"channel": "half"}, "channel was 'none', is 'half'"),
        ({"rule": "median"}, "rule was 'mean', is 'median'"),
        (
            {"attack": "zero", "malicious": 2},
            "attack was 'none', is 'zero', malicious was 0.0, is 2.0",
        ),
    ],
)
def test_only_the_same_channel_rule_and_attack_continue_a_run(change, says, tmp_path):
    run("fedavg", directory=tmp_path / "run", **GIVEN)
    with pytest.raises(SettingError, match=says):
        run("fedavg", directory=tmp_path / "run", resume=True, **GIVEN, **change)

"""A method whose split leaves nothing to share sends nothing: with any channel, rule or attack."""

import pytest
import torch
from torch import Tensor, nn

import idiolect as il
from idiolect.channels import CHANNELS
from idiolect.core.knobs import SettingError
from idiolect.testing import federation, private_of, state_of

ALONE = (
    il.FedAlt(part="all", steps=2, private_steps=1),
    il.FedSim(part="all", steps=2),
    il.Ffgg(part="all", start="kept", steps=2),
    il.LocalFfgg(part="all", steps=2, local_steps=1),
    il.LgFedAvg(shared_part="none", steps=2),
)
names = [type(method).__name__ for method in ALONE]
every_method = pytest.mark.parametrize("method", ALONE, ids=names)
CHAINS = (*CHANNELS, "feedback + topk + qsgd", "sketch(exact=true)", "clip + half")


class Scaled(nn.Module):
    """A linear layer and one number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.linear = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scale


def run(method: il.Method, model=Scaled, **settings) -> il.Result:
    return il.run(method, il.Task(model), federation(), rounds=2, batch=4, **settings)


def same(a: il.Result, b: il.Result) -> bool:
    left, right = ({**state_of(r), **private_of(r)} for r in (a, b))
    return left.keys() == right.keys() and all(torch.equal(t, right[n]) for n, t in left.items())


@pytest.mark.filterwarnings("ignore")
@every_method
def test_every_channel_rule_and_engine_gives_the_same_run_without_a_byte(method):
    plain = run(method, sample=4, chunk=1)
    others = (
        *({"channel": text} for text in CHAINS),
        *({"rule": name} for name in ("median", "krum", "trimmed-mean")),
        {"server_optimizer": "adam"},
        {"hosts": 3},
        {"quorum": 4},
    )
    for settings in others:
        other = run(method, sample=4, chunk=1, **settings)
        assert same(plain, other), settings
        assert other.summary()["bytes"] == {"up": 0, "down": 0}, settings
        assert other.summary()["values"] == {"up": 0, "down": 0}, settings


@pytest.mark.filterwarnings("ignore")
def test_every_attack_runs_where_nothing_is_sent():
    for attack in il.attacks.ATTACKS:
        result = run(il.FedAlt(part="all"), attack=attack, malicious=2)
        assert result.summary()["bytes"]["up"] == 0


def test_before_the_run_it_is_said_what_this_is_and_what_to_do(capsys):
    result = run(il.FedAlt(part="all"), channel="half")
    words = "nothing is sent; this is Local; a smaller private part would share the rest"
    assert words in " ".join(capsys.readouterr().err.split())
    assert words in " ".join(str(result).split())


@every_method
def test_messages_that_do_not_exist_cannot_be_used_as_they_arrive(method):
    with pytest.raises(SettingError, match=r"timing must be 'rounds' for .*: it sends nothing"):
        run(method, timing="arrivals")


@pytest.mark.filterwarnings("ignore")
def test_running_statistics_stay_private_with_everything_else():
    """All parameters private is Local: then the statistics of a BatchNorm do not travel either."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    alone = run(il.LgFedAvg(shared_part="none", steps=2), model, channel="half", hosts=2, chunk=1)
    local = run(il.Local(steps=2), model, chunk=1)
    assert alone.summary()["bytes"] == {"up": 0, "down": 0}
    assert alone.summary()["loss"]["mean"] == local.summary()["loss"]["mean"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("channel", CHAINS)
def test_one_number_goes_through_every_channel(channel):
    for method in (il.FedAlt(part="linear*"), il.LgFedAvg(shared_part="scale", steps=2)):
        result = run(method, channel=channel)
        assert result.summary()["bytes"]["up"] > 0


@pytest.mark.filterwarnings("ignore")
def test_a_run_that_sends_nothing_resumes(tmp_path):
    method = il.FedAlt(part="all")
    settings = {"channel": "feedback + topk", "checkpoint_every": 1}
    half = {**settings, "directory": tmp_path / "run"}
    il.run(method, il.Task(Scaled), federation(), rounds=1, **half)
    resumed = il.run(method, il.Task(Scaled), federation(), rounds=2, resume=True, **half)
    assert same(resumed, il.run(method, il.Task(Scaled), federation(), rounds=2, **settings))

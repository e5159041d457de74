"""Canaries: clients made to be noticed, sent through the code that protects clients.

A canary sends ten times the clipping norm in a direction of its own, with the sign turned in every
other round, so that an attacker who takes differences of rounds loses none of it. The score of a
canary is the sum over rounds of what is released in its direction, in units of the clipping norm;
or of the logarithms of what that tells, where it may not have been heard.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

import idiolect as il
from idiolect.core import streams
from idiolect.core.types import State
from idiolect.method import Combine
from idiolect.privacy import Central, Local, Noise
from idiolect.privacy.accountant import Exposure
from idiolect.privacy.audit import gaussian_bound, one_run_bound, two_sided_bound
from idiolect.privacy.plan import PrivacyPlan
from idiolect.server.private_mean import PrivacyAccount, PrivateMean
from idiolect.server.selection import Poisson, Pool, Uniform
from idiolect.task.context import Here
from idiolect.task.task import Task

DELTA = 1e-5
STRENGTH = 10.0  # norm of a canary's message over the clipping norm
SHARES = {"c": 0.1, "w": math.sqrt(0.99)}  # of the parts of a message, in its norm
CROWD = 20  # other clients; they all send the opposite of the canary
SEED = 7  # of the run: public


@dataclass(frozen=True)
class Scores:
    """What an attacker makes of all releases, and what the code says has been spent."""

    claim: float  # ε
    values: np.ndarray  # float64[m]
    included: np.ndarray  # bool[m]

    @classmethod
    def together(cls, several: list[Scores]) -> Scores:
        """Those of several runs, which share no canary."""
        values = np.concatenate([one.values for one in several])
        included = np.concatenate([one.included for one in several])
        return cls(max(one.claim for one in several), values, included)

    def one_run(self) -> float:
        """A lower bound on ε by guesses of the coins."""
        return one_run_bound(self.values, self.included, DELTA)

    def two_sided(self) -> float:
        """A lower bound on ε by error rates; the scores must not depend on each other."""
        return two_sided_bound(*self._sides, DELTA)

    def gaussian(self) -> float:
        """The same where the claim is that of a Gaussian mechanism."""
        return gaussian_bound(*self._sides, DELTA)

    @property
    def _sides(self) -> tuple[np.ndarray, np.ndarray]:
        return self.values[self.included], self.values[~self.included]


def sign_of(round: int) -> int:
    """Of the canaries' messages."""
    return 1 if round % 2 == 0 else -1


def source_of(rng: np.random.Generator | None) -> Noise:
    """The secret source; for tests one of the same kind that can be repeated."""
    return Noise("secret") if rng is None else Noise("secret", entropy=rng.bytes)


# -- the server adds the noise ---------------------------------------------------------------------
@dataclass(frozen=True)
class CentralSetup:
    """The mechanism of `PrivateMean`, over rounds."""

    protection: Central
    rounds: int = 1
    parts: tuple[str, ...] = ("w",)
    rate: float = 1.0  # of Poisson sampling

    def plan(self, clients: int, source: Noise) -> PrivacyPlan:
        """For so many clients that may take part."""
        sample = max(round(self.rate * clients), 1)
        exposure = Exposure(self.rate, self.rounds)
        return PrivacyPlan.of(
            self.protection, self.protection.clip, 0.0, DELTA, exposure, sample, clients, source
        )

    def draw(self, plan: PrivacyPlan, seed: int, round: int, eligible: Tensor) -> Tensor:
        """Who is heard, by the server's own selection."""
        if self.rate == 1:
            return eligible
        keys = streams.name_keys([str(i) for i in range(plan.clients)])
        data = torch.ones(plan.clients, dtype=torch.float64)
        pool = Pool(seed, round, keys, eligible, data, plan.sample, plan.clients)
        return Poisson().draw(pool)

    def message(self, directions: Tensor) -> State:
        """Messages of these directions [S, n], in all parts."""
        shares = SHARES if len(self.parts) > 1 else {"w": 1.0}
        return {part: directions * shares[part] for part in self.parts}

    def seen(self, means: State, reference: State) -> Tensor:
        """What is released along the message of each direction: float64[n]."""
        shares = SHARES if len(self.parts) > 1 else {"w": 1.0}
        changes = {n: x[0] - reference[n] if n in reference else x[0] for n, x in means.items()}
        return sum(shares[n] * x.double() for n, x in changes.items())


def central_scores(
    setup: CentralSetup,
    canaries: int,
    rng: np.random.Generator,
    source: Noise,
    public_draw: bool = False,
) -> Scores:
    """Of many canaries with orthogonal messages, in one run.

    With `public_draw` the attacker computes who is heard from the seed of the run, and looks at
    those rounds alone.
    """
    plan = setup.plan(canaries, source)
    account = PrivacyAccount.new(plan, canaries)
    mean = PrivateMean(account)
    included = rng.random(canaries) < 0.5
    eligible = torch.from_numpy(np.flatnonzero(included))
    everyone = torch.arange(canaries)
    reference = {"w": torch.from_numpy(rng.normal(size=canaries)).float()}
    values = np.zeros(canaries)
    for number in range(setup.rounds):
        seed = account.sampling_seed(number, SEED)
        heard = setup.draw(plan, seed, number, eligible)
        account.begin(number, eligible, heard)
        clip = account.clip
        directions = torch.zeros(len(heard), canaries)
        directions[torch.arange(len(heard)), heard] = STRENGTH * clip * sign_of(number)
        up = setup.message(directions)
        up = {n: x + reference[n] if n in reference else x for n, x in up.items()}
        means, account.clip = mean(up, reference, number, plan.sample)
        seen = setup.seen(means, reference).numpy() * plan.sample / clip * sign_of(number)
        if public_draw:
            supposed = setup.draw(plan, SEED, number, everyone).numpy()
            values[supposed] += seen[supposed]
        else:
            adaptive = plan.adaptive_clip(plan.sample)
            noise = plan.noise if adaptive is None else adaptive.update_noise
            values += log_ratio(seen, noise, setup.rate)
    return Scores(account.worst(), values, included)


def log_ratio(seen: np.ndarray, noise: float, rate: float) -> np.ndarray:
    """How much more probable this is of a canary that is heard at this rate than of another.

    >>> log_ratio(np.array([0.5]), noise=2.0, rate=1.0)
    array([0.])
    """
    heard = (seen - 0.5) / noise**2
    return np.logaddexp(math.log(rate) + heard, math.log1p(-rate) if rate < 1 else -math.inf)


def central_releases(
    setup: CentralSetup, releases: int, rng: np.random.Generator, source: Noise
) -> Scores:
    """Of one canary among others who all send the opposite, in many runs.

    Whatever else is released counts too: the noisy count by which the clipping norm moves.
    """
    if setup.rate < 1:
        raise ValueError("rate must be 1: who else is heard would hide the canary")
    included = rng.random(releases) < 0.5
    scores = [_release(setup, bool(coin), source) for coin in included]
    claim, values = scores[0][0], np.array([score for _, score in scores])
    return Scores(claim, values, included)


def _release(setup: CentralSetup, included: bool, source: Noise) -> tuple[float, float]:
    """(ε that is claimed, the canary's score)."""
    clients = CROWD + 1
    plan = setup.plan(clients, source)
    account = PrivacyAccount.new(plan, clients)
    mean = PrivateMean(account)
    heard = torch.arange(clients if included else CROWD)
    adaptive = plan.adaptive_clip(plan.sample)
    reference = {"w": torch.ones(1)}
    score = 0.0
    for number in range(setup.rounds):
        account.begin(number, heard, heard)
        clip = account.clip
        directions = torch.full((len(heard), 1), -STRENGTH * clip * sign_of(number))
        directions[CROWD:] *= -1
        up = setup.message(directions)
        up = {n: x + reference[n] if n in reference else x for n, x in up.items()}
        means, account.clip = mean(up, reference, number, plan.sample)
        seen = float(setup.seen(means, reference)[0]) * plan.sample / clip * sign_of(number)
        if adaptive is None:
            score += seen
            continue
        # the canary adds C along its message, and -1/2 to the count: weighed by what each tells
        share = adaptive.quantile - math.log(account.clip / clip) / adaptive.rate
        count = (share - 0.5) * plan.sample
        score += seen / adaptive.update_noise**2 - 0.5 * count / adaptive.count_noise**2
    return account.worst(), score


def uniform_releases(
    protection: Central, releases: int, rng: np.random.Generator, source: Noise, removed: bool
) -> Scores:
    """Of a canary in rounds that hear one of two clients, a fixed number; the other is opposite.

    Who is heard is public, and these are rounds that hear the canary. Where it does not take part,
    it is silent, or `removed` from the roster: then the other one is heard in its place.
    """
    plan = PrivacyPlan.of(protection, protection.clip, 0.0, DELTA, Exposure(1.0, 1), 1, 2, source)
    keys = streams.name_keys(["canary", "other"])
    both, other = torch.tensor([0, 1]), torch.tensor([1])
    data = torch.ones(2, dtype=torch.float64)
    own = torch.tensor([[1.0], [-1.0]]) * STRENGTH * protection.clip
    included, values = rng.random(releases) < 0.5, np.zeros(releases)
    number = 0
    for i in range(releases):
        while int(Uniform().draw(Pool(SEED, number, keys, both, data, 1, 2))[0]) != 0:
            number += 1
        eligible = other if removed and not included[i] else both
        heard = Uniform().draw(Pool(SEED, number, keys, eligible, data, 1, 2))
        present = heard if included[i] else heard[heard != 0]
        account = PrivacyAccount.new(plan, 2)
        account.begin(number, eligible, heard)
        means, _ = PrivateMean(account)({"w": own[present]}, {}, number, plan.sample)
        values[i] = float(means["w"][0, 0])
        number += 1
    return Scores(account.worst(), values, included)


# -- clients add the noise -------------------------------------------------------------------------
@dataclass(frozen=True)
class LocalSetup:
    """The mechanism of `MessageNoise`, over rounds."""

    protection: Local
    rounds: int = 1


def local_scores(
    setup: LocalSetup, canaries: int, rng: np.random.Generator, source: Noise
) -> Scores:
    """Of canaries that send a message, or its opposite in its place."""
    exposure = Exposure(1.0, setup.rounds)
    plan = PrivacyPlan.of(
        setup.protection, setup.protection.clip, 0.0, DELTA, exposure, canaries, canaries, source
    )
    account = PrivacyAccount.new(plan, canaries)
    mechanism = plan.message_noise
    assert mechanism is not None
    everyone = torch.arange(canaries)
    keys = streams.name_keys([str(i) for i in range(canaries)])
    included = rng.random(canaries) < 0.5
    own = torch.from_numpy(np.where(included, 1.0, -1.0)).float()
    reference = {"w": torch.ones(2)}
    values = np.zeros(canaries)
    for number in range(setup.rounds):
        account.begin(number, everyone, everyone)
        change = torch.zeros(canaries, 2)
        change[:, 0] = STRENGTH * mechanism.clip * own * sign_of(number)
        up = mechanism({"w": reference["w"] + change}, reference, keys, number)
        values += sign_of(number) * (up["w"] - reference["w"])[:, 0].double().numpy()
    return Scores(account.worst(), values, included)


# -- whole runs ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Canary(il.Method):
    """Sends the received model with the client's only sample added, many times over."""

    traits = il.Traits(rates=())

    strength: float = STRENGTH

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        sample = here.training_samples().inputs[:, 0]
        return {"w": down["w"] + sign_of(here.round) * self.strength * sample}, private


@dataclass(frozen=True)
class WatchedCanary(Canary):
    """The same, and somebody at the server writes down every message."""

    messages: Callable[[Tensor, Tensor], None] = field(default=lambda ids, rows: None, repr=False)

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        self.messages(rule.wire_ids, up["w"] - server["w"])
        return super().aggregate(task, server, up, rule)


@dataclass(frozen=True)
class Sender:
    """A method under which a canary's data decide what it sends."""

    method: il.Method | str
    shares: dict[str, float]  # of the parts of a message in its direction
    turns: bool = False  # whether the sign turns from round to round
    target: float = 0.0  # of the sample


SENDERS = {
    "canary": Sender(Canary(), {"w": 1.0}, turns=True),
    # the loss (w_i - 1000)² has a gradient far beyond the clipping norm, in every round
    "fedavg": Sender("fedavg:lr=1,steps=1,weighting=equal", {"w": 1.0}, target=1e3),
    # one step of size 1 from c = 0: the change of the model is minus that of the control variate
    "scaffold": Sender("scaffold:lr=1,steps=1", {"w": 0.5**0.5, "c": -(0.5**0.5)}, target=1e3),
}


@dataclass(frozen=True)
class RunSetup:
    """A run of `il.run` whose clients are canaries."""

    privacy: str
    numbers: int  # of a part of a message
    rounds: int = 1
    rate: float = 1.0  # of Poisson sampling
    sender: str = "canary"


def run_scores(setup: RunSetup, rng: np.random.Generator, seed: int = SEED) -> Scores:
    """Of as many canaries as a message has numbers; those that are left out are no clients."""
    n = setup.numbers
    included = rng.random(n) < 0.5
    places = np.flatnonzero(included)
    sender = SENDERS[setup.sender]
    states: list[State] = []
    sample = max(round(setup.rate * len(places)), 1)
    result = il.run(
        sender.method,
        _task(n),
        _federation(np.eye(n, dtype=np.float32)[places], sender.target),
        **_settings(setup, sample, seed),
        on_round=lambda moment: states.append(moment.state()),
    )
    values = np.zeros(n)
    for part, share in sender.shares.items():
        before = _task(n).x0 if part == "w" else torch.zeros(n)
        vectors = np.array([before.numpy(), *(state[part].numpy() for state in states)], float)
        signs = [sign_of(number) if sender.turns else 1 for number in range(setup.rounds)]
        values += share * sample * (np.array(signs) @ np.diff(vectors, axis=0))
    return Scores(_claim(result), values, included)


def watched_scores(setup: RunSetup, canaries: int, rng: np.random.Generator) -> Scores:
    """Of the messages as the server sees them; canaries send a message, or its opposite."""
    included = rng.random(canaries) < 0.5
    samples = np.zeros((canaries, setup.numbers), dtype=np.float32)
    samples[:, 0] = np.where(included, 1.0, -1.0)
    values = np.zeros(canaries)
    rounds: list[int] = []

    def write_down(wire_ids: Tensor, changes: Tensor) -> None:
        values[wire_ids.numpy()] += sign_of(len(rounds)) * changes[:, 0].double().numpy()
        rounds.append(1)

    method = WatchedCanary(messages=write_down)
    federation = _federation(samples)
    result = il.run(method, _task(setup.numbers), federation, **_settings(setup, canaries, SEED))
    return Scores(_claim(result), values, included)


def _task(numbers: int) -> Task:
    module = nn.Linear(numbers, 1, bias=False)
    nn.init.zeros_(module.weight)
    return il.Task(module, loss="mse")


def _federation(samples: np.ndarray, target: float = 0.0) -> il.Federation:
    """A client for each sample."""
    owners = np.arange(len(samples))
    targets = np.full(len(samples), target + 0.5, dtype=np.float32)
    return il.Federation.from_arrays(samples, targets, owners, kind="values")


def _settings(setup: RunSetup, sample: int, seed: int) -> dict:
    return {
        "sample": sample,
        "selection": "poisson" if setup.rate < 1 else "uniform",
        "rounds": setup.rounds,
        "privacy": setup.privacy,
        "delta": DELTA,
        "seed": seed,
        "standardise_targets": False,
        "progress": False,
    }


def _claim(result: il.Result) -> float:
    return result.summary()["privacy"]["epsilon"]["worst"]

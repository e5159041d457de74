"""Random schedules of faults; all five invariants of docs/reliability.md after every step.

Hypothesis draws a method, a channel, a rule and a list of steps, and shrinks a list that fails to a
short one. In `make test` the schedules are the same every time; `make faults` draws new ones
(IDIOLECT_FAULTS_SCHEDULES = how many, IDIOLECT_FAULTS_STEPS = how long).
"""

import os
import shutil
import tempfile
from pathlib import Path

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from faults.engine import ANSWER_KINDS, ENGINES, KINDS, Plan
from faults.parties import HOSTS, NEWCOMERS, Faulty, Model, Setting, differences, digest

METHODS = ("fedavg", "scaffold", "ditto", "lp-proj", "fedalt", "pfedme", "feddeper", "lg-fedavg")
CHANNELS = (
    "none",
    "qsgd(levels=4, bucket=10)",
    "feedback + topk(share=0.2)",
    "lbgm(threshold=0.9)",
    "sketch(columns=5, rows=3, k=4)",
    "sketch(columns=5, rows=3, k=2, exact=True)",  # has a second exchange
)
SCHEDULES = int(os.environ.get("IDIOLECT_FAULTS_SCHEDULES", "0"))
STEPS = int(os.environ.get("IDIOLECT_FAULTS_STEPS", "25"))

clients = st.integers(0, 5)
amounts = st.integers(0, 20)


def some(kinds):
    return st.dictionaries(clients, st.sampled_from(kinds), max_size=3)


class Schedule(RuleBasedStateMachine):
    """A run with faults, and beside it the run in which whoever failed was not selected."""

    @initialize(
        method=st.sampled_from(METHODS),
        channel=st.sampled_from(CHANNELS),
        aggregation=st.sampled_from(["mean", "mean", "median", "centred-clipping"]),
        quorum=st.integers(1, 2),
        sample=st.integers(2, 4),
        attack=st.sampled_from(["", "", "gaussian", "scaling"]),
        optimizer=st.sampled_from(["sgd", "sgd", "adam"]),
        engine=st.sampled_from(list(ENGINES)),
    )
    def begin(self, method, channel, aggregation, quorum, sample, attack, optimizer, engine):
        setting = Setting(method, channel, aggregation, quorum, sample, attack, optimizer, engine)
        self.folder = Path(tempfile.mkdtemp(prefix="idiolect-faults-"))
        self.faulty = Faulty(setting, self.folder)
        self.model = Model(setting)
        self.backed_up: set[int] = set()
        self.saved: tuple | None = None  # what the newest checkpoint must hold
        self.seen: set[tuple[int, int]] = set()  # (round, client) that have counted
        self.under_way = False  # whether hosts have begun a round that the server has not closed

    def teardown(self):
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    # -- rounds ------------------------------------------------------------------------------------
    @rule(
        messages=some(KINDS),
        answers=some(ANSWER_KINDS),
        amount=amounts,
        backwards=st.booleans(),
        twice=st.booleans(),
        strangers=st.sampled_from([0, 0, 1, 5]),
    )
    def round(self, **plan):
        faulty = self.faulty
        server = faulty.server
        version = server.version
        before = server.ledger.total("bytes_up")
        faulty.post.plan = Plan(**plan)
        faulty.advance()
        verdict = faulty.post.verdict
        self.under_way = False
        assert server.version == version + 1 and verdict.version == version
        counted = verdict.counted.tolist()
        self.balances(counted, verdict, before)
        for client in counted:
            assert (version, client) not in self.seen, "a message counted twice"
            self.seen.add((version, client))
        self.model.do("round", counted, self.altered(counted, plan["messages"]))

    def altered(self, counted, kinds):
        """Messages that were changed on their way and were sound all the same."""
        changing = ("flipped", "not a number", "huge")
        arrived = self.faulty.post.arrived
        return {k: arrived[k][0] for k in counted if kinds.get(k) in changing}

    def balances(self, counted, verdict, before):
        """Invariant 1: selected = admitted + rejected + missing, and the sum of admitted bytes."""
        ledger = self.faulty.server.ledger
        last = ledger.last
        assert last.round == verdict.version
        assert last.admitted == len(counted) == len(set(counted))
        assert last.selected == len(counted) + len(verdict.unheard)
        lost = sum(last.rejected.values()) + sum(last.missing.values())
        assert last.selected == last.admitted + lost, last
        assert ledger.total("bytes_up") - before == last.bytes
        arrived = self.faulty.post.arrived
        least = sum(min(len(m) for m in arrived[k]) for k in counted)
        most = sum(len(m) for k in counted for m in arrived[k])
        assert least <= last.bytes <= most, (least, last.bytes, most)

    # -- clients come and go -----------------------------------------------------------------------
    @precondition(lambda self: len(self.faulty.places) < len(HOSTS) + len(NEWCOMERS))
    @rule()
    def join(self):
        client = NEWCOMERS[len(self.faulty.places) - len(HOSTS)]
        self.faulty.join(client)
        self.model.do("join", client)

    @rule(client=st.integers(0, 3))
    def leave(self, client):
        eligible = self.faulty.server.roster.eligible_ids().tolist()
        if client in eligible and len(eligible) > 2:
            self.faulty.server.roster.leave([self.faulty.server.roster.ids[client]])
            self.model.do("leave", client)

    @rule(client=st.integers(0, 3))
    def rejoin(self, client):
        self.faulty.server.roster.rejoin([self.faulty.server.roster.ids[client]])
        self.model.do("rejoin", client)

    # -- hosts that stop ---------------------------------------------------------------------------
    @precondition(lambda self: not self.under_way)
    @rule(host=st.integers(0, 1))
    def restart(self, host):
        self.faulty.restart(host)

    @precondition(lambda self: not self.under_way)
    @rule(host=st.integers(0, 1))
    def back_up(self, host):
        self.faulty.back_up(host)
        self.model.do("back_up", host)
        self.backed_up.add(host)

    @precondition(lambda self: self.backed_up)
    @rule(host=st.integers(0, 1))
    def restore(self, host):
        if host in self.backed_up:
            self.faulty.restore(host)
            self.model.do("restore", host)

    # -- servers that stop -------------------------------------------------------------------------
    @rule()
    def lose_the_server_in_a_round(self):
        self.faulty.lose_server_in_a_round()
        self.under_way = True

    def content(self):
        """What a crash must bring back, and how the model gets there too."""
        faulty = self.faulty
        facts = faulty.server.ledger.save()[1]
        places = [list(ids) for ids in faulty.places]
        state = digest(faulty.kept()), facts, faulty.server.version
        return state, places, list(self.model.log), set(self.seen), set(self.backed_up)

    @precondition(lambda self: not self.under_way)
    @rule()
    def save(self):
        assert self.faulty.save()
        self.saved = self.content()

    @precondition(lambda self: self.saved and not self.under_way)
    @rule(at=st.integers(1, 40))
    def save_on_a_full_disk(self, at):
        now = self.content()
        if self.faulty.save(full_at=at):
            self.saved = now
        elif self.faulty.newest().round == now[0][2] != self.saved[0][2]:
            self.saved = now  # the disk was full only after all of it was written

    @precondition(lambda self: self.saved)
    @rule()
    def crash(self):
        """Invariant 2: what comes back is what was saved, bit for bit, and goes on as before."""
        state, places, log, self.seen, self.backed_up = (
            self.saved[0],
            *self.saved[1:3],
            set(self.saved[3]),
            set(self.saved[4]),
        )
        self.faulty.load(places)
        self.under_way = False
        assert self.content()[0] == state
        self.model = Model(self.model.setting, log)

    # -- after every step --------------------------------------------------------------------------
    @invariant()
    def nobody_who_failed_left_a_trace(self):
        """Invariants 2, 3 and 4: bit-equal to the run in which they were not selected."""
        if hasattr(self, "faulty"):
            wrong = differences(self.faulty.kept(), self.model.kept())
            assert not wrong, f"{wrong} differ from the run without those who failed"

    @invariant()
    def the_server_is_finite(self):
        if hasattr(self, "faulty"):
            for name, t in self.faulty.kept().items():
                if not name.startswith(("store.", "coder.")) and t.is_floating_point():
                    assert bool(torch.isfinite(t).all()), name


def run(schedules: int, steps: int, repeatable: bool) -> None:
    run_state_machine_as_test(
        Schedule,
        settings=settings(
            max_examples=schedules,
            stateful_step_count=steps,
            derandomize=repeatable,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_invariants_hold_on_schedules_of_faults():
    if SCHEDULES:
        run(SCHEDULES, STEPS, repeatable=False)
    else:
        run(schedules=15, steps=12, repeatable=True)

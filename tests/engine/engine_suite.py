"""What every engine must do. A test file of an engine derives a class and says how to build one:

    class TestLocal(EngineSuite):
        @pytest.fixture
        def build(self):
            return local_rounds            # (server, hosts) -> engine

Faults are hosts behind a `Network` that loses, repeats, delays or alters messages; nothing inside
server or host is replaced.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from engine.setting import (
    CLIENTS,
    EVERYONE,
    EXACT,
    FEDERATION,
    RUN,
    Network,
    balanced,
    contract,
    held,
    host,
    hosts,
    of_hosts,
    of_server,
    server,
    session,
    with_header,
)
from helpers import by_turns
from idiolect.attacks.malicious import WatchedHost
from idiolect.data.federation import Federation
from idiolect.host.host import Host
from idiolect.methods import METHODS, make_method
from idiolect.server.step import ServerStep
from idiolect.testing import federation
from idiolect.wire import messages as wire

STATEFUL = "feedback + lbgm(threshold=0.9) + half"  # memories at clients and at the server
CHANNELS = ("none", STATEFUL, "sketch(columns=5, rows=3, k=4)", EXACT)
# no attack; each message by itself and a rule by coordinate; collusion and a rule that selects
HOSTILE = {
    "honest": {},
    "gaussian, median": {"attack": "gaussian", "malicious": 2, "rule": "median"},
    "alie, krum": {"attack": "alie", "malicious": 2, "rule": "krum"},
}


def without_last(version: int, messages: list[bytes]) -> list[bytes]:
    """The last message of the round of version 1 is lost."""
    return messages[:-1] if version == 1 else messages


def truncated_last(version: int, messages: list[bytes]) -> list[bytes]:
    return [*messages[:-1], messages[-1][:20]] if version == 1 else messages


class EngineSuite:
    """Every test gets `build(server, hosts)`."""

    @pytest.fixture
    def build(self):
        raise NotImplementedError("say how to build this engine from a server and hosts")

    # -- rounds ------------------------------------------------------------------------------------
    @pytest.mark.parametrize("channel", CHANNELS)
    def test_a_round_advances_version_and_ledger(self, build, channel):
        agreed = contract(channel=channel)
        behind = [Network(h) for h in hosts(agreed, 2)]
        engine = build(server(agreed), behind)
        for version in range(4):
            assert engine.server.version == version
            before = of_server(engine.server)
            engine.advance()
            after = of_server(engine.server)
            assert not torch.equal(before["state.w"], after["state.w"])
            ledger = engine.server.ledger
            assert ledger.selected == ledger.admitted == 4 * (version + 1)
            assert not ledger.rejected
            arrived = sum(len(m) for h in behind for m in h.arrived)
            assert ledger.total("bytes_up") == arrived
            assert int(ledger.counts["gradients"].sum()) > 0

    def test_the_rate_of_a_round_scales_the_learning_rates(self, build):
        agreed = contract("fedavg")
        moved = []
        for rate in (1.0, 0.5):
            engine = build(server(agreed), hosts(agreed))
            engine.advance({"rates": rate})
            moved.append(float((engine.server.state["w"] - agreed.task.x0).norm()))
        assert 0 < moved[1] < moved[0]

    # -- what networks do --------------------------------------------------------------------------
    @pytest.mark.parametrize("channel", CHANNELS)
    def test_a_client_that_does_not_answer_is_absent(self, build, channel):
        """For the server, for what both sides of a channel remember, and in the ledger."""
        agreed = contract(channel=channel)
        both = {}
        for name, tamper in (("missing", without_last), ("size", truncated_last)):
            one, other = hosts(agreed, 2)
            engine = build(server(agreed, sample=CLIENTS), [one, Network(other, tamper)])
            for _ in range(3):
                engine.advance()
                balanced(engine)
            ledger = engine.server.ledger
            assert ledger.missing == {"silent": 1} and not ledger.rejected
            assert ledger.surplus == ({} if name == "missing" else {"size": 1})
            both[name] = {**of_server(engine.server), **of_hosts(engine.hosts)}
        for n, t in both["missing"].items():
            assert torch.equal(t, both["size"][n]), n

    def test_a_host_that_is_gone_is_all_its_clients_absent(self, build):
        agreed = contract(channel=STATEFUL)
        one, other = hosts(agreed, 2)
        silent = Network(other, lambda version, messages: [])
        engine = build(server(agreed, sample=CLIENTS), [one, silent])
        for _ in range(3):
            engine.advance()
            balanced(engine)
        ledger = engine.server.ledger
        assert ledger.missing == {"silent": 9} and ledger.admitted == 9
        assert not ledger.counts["bytes_up"][other.wire_ids].any()

    def test_an_order_that_never_reaches_a_host_is_as_if_its_messages_were_lost(self, build):
        agreed = contract(channel=STATEFUL)
        both = []

        class Unreached(Network):
            def update(self, order):
                if order.version != 1:
                    return super().update(order)
                nobody = replace(order, train=order.train[:0], heard=order.heard[:0])
                return super().update(nobody)

        def lost(version, messages):
            return [] if version == 1 else messages

        for make in (Unreached, lambda h: Network(h, lost)):
            one, other = hosts(agreed, 2)
            engine = build(server(agreed, sample=CLIENTS), [one, make(other)])
            engine.advance()
            engine.advance()
            assert engine.server.ledger.missing == {"silent": 3}
            both.append({**of_server(engine.server), **of_hosts(engine.hosts)})
        for n, t in both[0].items():
            assert torch.equal(t, both[1][n]), n

    def test_a_message_beyond_those_asked_for_is_counted_on_top(self, build):
        """Every message has a fate, and so has every client that was selected."""
        agreed = contract()
        one, other = hosts(agreed, 2)

        def three_strangers_for_one_client(version, messages):
            strangers = [with_header(messages[0], client=k) for k in (70, 71, 72)]
            return [*strangers, *messages[1:]]

        behind = Network(other, three_strangers_for_one_client)
        engine = build(server(agreed, sample=CLIENTS), [one, behind])
        engine.advance()
        ledger = engine.server.ledger
        assert ledger.admitted == CLIENTS - 1 and ledger.surplus == {"stranger": 3}
        assert ledger.missing == {"silent": 1} and not ledger.rejected
        assert ledger.total("bytes_up") == ledger.admitted * agreed.up.length

    def test_nobody_answers(self, build):
        agreed = contract(channel=STATEFUL)
        silent = [Network(h, lambda version, messages: []) for h in hosts(agreed, 2)]
        engine = build(server(agreed), silent)
        before = of_server(engine.server)
        for _ in range(2):
            engine.advance()
        after = of_server(engine.server)
        assert engine.server.version == 2
        assert all(torch.equal(t, after[n]) for n, t in before.items())
        assert engine.server.ledger.missing == {"silent": 8}

    @pytest.mark.parametrize("channel", CHANNELS)
    @pytest.mark.parametrize("fault", ["late", "repeated", "stranger", "shuffled"])
    def test_messages_that_should_not_be_there_change_nothing(self, build, channel, fault):
        agreed = contract(channel=channel)
        honest = build(server(agreed, sample=CLIENTS), hosts(agreed, 2))
        earlier: list[bytes] = []

        def tamper(version, messages):
            if fault == "late":
                before = list(earlier)
                earlier[:] = messages
                return [*before, *messages]
            if fault == "repeated":
                return [*messages, *messages[::-1]]
            if fault == "stranger":
                return [with_header(messages[0], client=77), *messages]
            return messages[::-1]

        one, other = hosts(agreed, 2)
        engine = build(server(agreed, sample=CLIENTS), [one, Network(other, tamper)])
        for _ in range(3):
            honest.advance()
            engine.advance()
        expected = {
            "late": {"round": 6},
            "repeated": {"repeated": 9},
            "stranger": {"stranger": 3},
            "shuffled": {},
        }
        assert engine.server.ledger.surplus == expected[fault]
        ours = {**of_server(honest.server), **of_hosts(honest.hosts)}
        theirs = {**of_server(engine.server), **of_hosts(engine.hosts)}
        for n, t in ours.items():
            assert torch.equal(t, theirs[n]), n
        ledger = engine.server.ledger
        assert ledger.admitted == ledger.selected == 3 * CLIENTS
        up = honest.server.ledger.counts["bytes_up"]
        assert torch.equal(ledger.counts["bytes_up"], up)

    @pytest.mark.parametrize("channel", ["none", STATEFUL, EXACT])
    def test_an_order_that_a_host_gets_twice_is_carried_out_once(self, build, channel):
        """The same bytes both times, and private rows step once."""
        agreed = contract(channel=channel)
        asked_twice = hosts(agreed, 2)

        class Twice(Network):
            def update(self, order):
                first = super().update(order)
                second = super().update(order)
                assert [first.messages.row(k) for k in range(len(first.messages))] == [
                    second.messages.row(k) for k in range(len(second.messages))
                ]
                return second

        plain = build(server(agreed, sample=5), hosts(agreed, 2))
        engine = build(server(agreed, sample=5), [Twice(h) for h in asked_twice])
        for _ in range(4):
            plain.advance()
            engine.advance()
        assert not held(plain).differences(held(engine))

    # -- rounds that come to nothing ---------------------------------------------------------------
    @pytest.mark.parametrize("channel", CHANNELS)
    def test_fewer_messages_than_the_quorum_leave_everything_as_it_was(self, build, channel):
        agreed = contract(channel=channel)
        one, other = hosts(agreed, 2)
        lossy = Network(other, lambda version, ms: [] if version == 1 else ms)
        engine = build(server(agreed, sample=CLIENTS, quorum=4), [one, lossy])
        for version in range(3):
            before = {**of_server(engine.server), **of_hosts(engine.hosts)}
            engine.advance()
            balanced(engine)
            after = {**of_server(engine.server), **of_hosts(engine.hosts)}
            same = all(torch.equal(t, after[n]) for n, t in before.items())
            assert same == (version == 1)
        ledger = engine.server.ledger
        assert ledger.rejected == {"too few": 3} and ledger.missing == {"silent": 3}
        assert ledger.admitted == 2 * CLIENTS

    def test_fewer_answers_than_the_quorum_leave_everything_as_it_was(self, build):
        agreed = contract(channel=EXACT)
        one, other = hosts(agreed, 2)
        lossy = Network(other, answers=lambda version, a: a[:0] if version == 1 else a)
        engine = build(server(agreed, sample=CLIENTS, quorum=4), [one, lossy])
        engine.advance()
        before = {**of_server(engine.server), **of_hosts(engine.hosts)}
        engine.advance()
        balanced(engine)
        after = {**of_server(engine.server), **of_hosts(engine.hosts)}
        assert all(torch.equal(t, after[n]) for n, t in before.items())
        assert engine.server.ledger.rejected == {"answer": 3, "too few": 3}
        engine.advance()
        assert engine.server.ledger.admitted == 2 * CLIENTS

    @pytest.mark.parametrize("channel", ["none", EXACT])
    def test_too_few_for_the_rule_leave_everything_as_it_was(self, build, channel):
        agreed = contract(channel=channel)
        one, other = hosts(agreed, 2)
        lossy = Network(other, lambda version, ms: [] if version == 1 else ms)
        engine = build(server(agreed, sample=CLIENTS, rule="krum(f=1)"), [one, lossy])
        engine.advance()
        before = {**of_server(engine.server), **of_hosts(engine.hosts)}
        engine.advance()
        balanced(engine)
        after = {**of_server(engine.server), **of_hosts(engine.hosts)}
        assert all(torch.equal(t, after[n]) for n, t in before.items())
        ledger = engine.server.ledger
        assert ledger.rejected == {"too few": 3} and ledger.missing == {"silent": 3}

    def test_a_sum_that_overflows_leaves_the_server_as_it_was(self, build):
        agreed = contract("fedavg")
        largest = np.float32(3e38).tobytes()

        def huge(version, messages):
            if version != 1:
                return messages
            return [m[:24] + largest * ((len(m) - 24) // 4) for m in messages]

        step = ServerStep(lr=2.0)
        behind = [Network(h, huge) for h in hosts(agreed, 2)]
        engine = build(server(agreed, sample=CLIENTS, step=step), behind)
        engine.advance()
        before = of_server(engine.server)
        engine.advance()
        balanced(engine)
        after = of_server(engine.server)
        assert all(torch.equal(t, after[n]) for n, t in before.items())
        assert engine.server.ledger.rejected == {"overflow": CLIENTS}

    # -- one host or several -----------------------------------------------------------------------
    @pytest.mark.parametrize(
        ("method", "channel", "hostile"), by_turns(METHODS, ["none", STATEFUL], HOSTILE)
    )
    def test_several_hosts_are_one(self, build, method, channel, hostile):
        """Server, private rows, both sides of the channel, ledger and scores, bit for bit."""
        settings = {"channel": channel, **HOSTILE[hostile]}
        if make_method(method).traits.uncombined:  # by the mean alone
            settings["rule"] = "mean"
        self._same_on_any_number_of_hosts(build, method, settings)

    @pytest.mark.parametrize("channel", CHANNELS[2:])
    @pytest.mark.parametrize("method", ["fedavg", "scaffold"])
    def test_several_hosts_are_one_where_sums_are_decoded(self, build, method, channel):
        settings = {"channel": channel, **HOSTILE["alie, krum"], "server_options": "momentum=0.9"}
        self._same_on_any_number_of_hosts(build, method, settings)

    def _same_on_any_number_of_hosts(self, build, method, settings):
        whole = session(method, **settings)
        engine = build(whole.server, whole.hosts)
        for _ in range(3):
            engine.advance()
        expected = held(engine, scored=True)
        for count in (2, 3):
            shared = session(method, hosts=count, **settings)
            malicious = len(shared.people.malicious) > 0
            assert len(shared.hosts) == count + malicious
            engine = build(shared.server, shared.hosts)
            for _ in range(3):
                engine.advance()
                balanced(engine)
            assert not expected.differences(held(engine, scored=True)), count

    def test_more_hosts_than_honest_clients(self, build):
        settings = {"attack": "gaussian", "malicious": 4}
        whole = session("ditto", **settings)
        shared = session("ditto", hosts=5, **settings)
        assert [len(h.wire_ids) for h in shared.hosts] == [1, 1, 4]
        engines = [build(s.server, s.hosts) for s in (whole, shared)]
        for engine in engines:
            engine.advance()
        one, other = (held(engine, scored=True) for engine in engines)
        assert not one.differences(other)

    @pytest.mark.parametrize("attack", ["alie", "gaussian", "mimic"])
    def test_a_round_in_which_no_honest_client_is_heard(self, build, attack):
        made = session("fedavg", sample=1, attack=attack, malicious=5, hosts=2)
        engine = build(made.server, made.hosts)
        heard = []
        for _ in range(6):
            heard += made.server.open().order.heard.tolist()
            engine.advance()
        assert set(heard) & set(made.people.malicious.tolist())
        assert engine.server.ledger.admitted == 6
        assert all(torch.isfinite(t).all() for t in engine.server.state.values())

    @pytest.mark.parametrize("channel", CHANNELS)
    def test_a_host_may_have_no_client_in_any_round(self, build, channel):
        agreed = contract(channel=channel)
        engines = [build(server(agreed), hosts(agreed, count)) for count in (1, 2)]
        for engine in engines:
            engine.server.roster.leave(FEDERATION.ids[:3])
            for _ in range(2):
                engine.advance()
        one, two = (held(engine, scored=True) for engine in engines)
        assert not one.differences(two)

    # -- joining and leaving -----------------------------------------------------------------------
    @pytest.mark.parametrize("channel", ["none", STATEFUL, EXACT])
    def test_clients_join_with_a_host_of_their_own(self, build, channel):
        first = EVERYONE[:4]
        agreed = contract(channel=channel)
        at = server(agreed, clients=first, sample=CLIENTS)
        engine = build(at, hosts(agreed, 2, first))
        engine.advance()
        new = EVERYONE[4:]
        sizes = FEDERATION.sizes("train")[new].tolist()
        wire_ids = at.enrol([FEDERATION.ids[k] for k in new], sizes)
        assert wire_ids.tolist() == [4, 5]
        engine = build(at, [*engine.hosts, host(agreed, wire_ids)])
        for _ in range(2):
            engine.advance()
            balanced(engine)
        assert at.ledger.selected == at.ledger.admitted == 4 + 2 * CLIENTS
        assert (at.ledger.counts["bytes_up"] > 0).all()
        assert len(engine.evaluate(EVERYONE, ("test",))["test"].wire_ids) == CLIENTS

    @pytest.mark.parametrize("attack", ["mimic", "alie"])
    def test_a_client_joins_while_others_collude(self, build, attack):
        made = session("fedavg", attack=attack, malicious=2, sample=0)
        at = made.server
        watched = made.hosts[0]
        data = replace(federation(seed=1).of([3]), ids=("newcomer",))
        wire_ids = at.enrol(["newcomer"], data.sizes("train").tolist())
        at.sample = CLIENTS + 1
        own = (watched.contract, data, wire_ids, watched.settings)
        newcomer = WatchedHost(*own, observer=watched.observer)
        engine = build(at, [watched, newcomer, made.hosts[-1]])
        for _ in range(2):
            engine.advance()
            balanced(engine)
        assert at.ledger.admitted == 2 * (CLIENTS + 1)
        assert at.ledger.counts["bytes_up"][-1] > 0

    def test_who_has_left_is_not_selected_until_it_comes_back(self, build):
        agreed = contract()
        at = server(agreed, sample=CLIENTS)
        engine = build(at, hosts(agreed, 2))
        gone = FEDERATION.ids[2]
        engine.advance()
        at.roster.leave([gone])
        spent = at.ledger.counts["gradients"][2].clone()
        for _ in range(2):
            engine.advance()
            balanced(engine)
        assert at.ledger.counts["gradients"][2] == spent
        assert at.ledger.selected == CLIENTS + 2 * (CLIENTS - 1)
        at.roster.rejoin([gone])
        engine.advance()
        assert at.ledger.counts["gradients"][2] > spent
        assert at.ledger.selected == at.ledger.admitted

    # -- scores ------------------------------------------------------------------------------------
    @pytest.mark.parametrize("method", ["fedavg", "ditto"])
    def test_scores_of_several_hosts_are_those_of_one(self, build, method):
        agreed = contract(method)
        some = torch.tensor([0, 1, 4])
        found = []
        for count in (1, 2, 3, CLIENTS):
            engine = build(server(agreed), hosts(agreed, count))
            engine.advance()
            found.append(engine.evaluate(some, ("test", "valid")))
        for scores, split in product(found, ("test", "valid")):
            assert scores[split].wire_ids.tolist() == some.tolist()
            for field in ("hits", "loss", "samples", "gradients"):
                ours = getattr(scores[split], field)
                assert torch.equal(ours, getattr(found[0][split], field)), field

    def test_scores_of_nobody(self, build):
        agreed = contract("ditto")
        engine = build(server(agreed), hosts(agreed, 2))
        scores = engine.evaluate(EVERYONE[:0], ("test",))["test"]
        assert not len(scores.wire_ids) and not len(scores.loss)

    def test_clients_that_took_no_part_are_personalised_and_send_nothing(self, build):
        agreed = contract("ditto")
        inside = EVERYONE[:4]
        at = server(agreed)
        at.roster.leave([FEDERATION.ids[k] for k in (4, 5)])
        engine = build(at, hosts(agreed, 2))
        engine.advance()
        before = held(engine)
        engine.personalise(EVERYONE[4:], rounds=2)
        after = held(engine)
        assert set(before.differences(after)) == {"store.v"}
        rows = before.tensors["store.v"]
        assert torch.equal(rows[inside], after.tensors["store.v"][inside])
        assert not torch.equal(rows[4:], after.tensors["store.v"][4:])

    # -- who holds what ----------------------------------------------------------------------------
    def test_a_host_holds_the_data_of_its_own_clients_only(self, build):
        made = session("fedavg", hosts=3)
        build(made.server, made.hosts)
        for one in made.hosts:
            assert one.data.clients == len(one.wire_ids) == 2
            mine = FEDERATION.of(one.wire_ids)
            assert one.data.names == mine.names
            assert torch.equal(one.data.inputs, mine.inputs.to(one.data.inputs.dtype))
            owned = [v for v in walk(one) if isinstance(v, Federation)]
            assert all(d.clients == 2 for d in owned)
            assert not any(isinstance(v, Host) for v in walk(one) if v is not one)

    def test_the_server_holds_no_data_and_no_host(self, build):
        made = session("ditto", hosts=2, channel=STATEFUL, attack="alie", malicious=2)
        engine = build(made.server, made.hosts)
        engine.advance()
        found = list(walk(engine.server))
        assert any(v is engine.server.contract.task for v in found)
        assert not any(isinstance(v, (Host, Federation)) for v in found)
        private = {t.data_ptr() for h in made.hosts for t in h.store.rows.values()}
        tensors = [v for v in found if isinstance(v, torch.Tensor)]
        assert tensors and not private & {t.data_ptr() for t in tensors}

    def test_a_message_under_another_contract_is_rejected(self, build):
        agreed = contract()
        other = contract("fedprox-soft", seed=4)
        assert agreed.up.length == other.up.length
        one = hosts(agreed, 2)[0]
        stranger = hosts(other, 2)[1]

        class Deaf(Network):
            """Takes orders of any server: the message down in its own contract's words."""

            def update(self, order):
                common = with_header(order.down.common, schema=other.down.checksum)
                down = wire.DownMessage(common)
                return super().update(type(order)(**{**vars(order), "down": down}))

        engine = build(server(agreed, sample=CLIENTS), [one, Deaf(stranger)])
        engine.advance()
        balanced(engine)
        assert engine.server.ledger.surplus == {"schema": 3}
        assert wire.HEADER.itemsize == 24 and agreed.run == other.run == RUN


def walk(start: object):
    """Every object that can be reached through attributes, containers and closures."""
    seen: set[int] = set()
    waiting = [start]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, (type, str, bytes, int, float, np.ndarray)):
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            waiting += list(value)
        elif callable(value) and getattr(value, "__closure__", None):
            waiting += [cell.cell_contents for cell in value.__closure__]
        if callable(value) and hasattr(value, "__self__"):
            waiting.append(value.__self__)
        if not isinstance(value, torch.Tensor):
            waiting += list(getattr(value, "__dict__", {}).values())

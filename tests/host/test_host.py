"""A host: its clients' data and private rows, and what it refuses."""

from dataclasses import replace

import pytest
import torch

from engine.loopback import local_rounds
from engine.setting import (
    CLIENTS,
    EVERYONE,
    FEDERATION,
    TASK,
    contract,
    host,
    hosts,
    of_hosts,
    server,
    session,
)
from idiolect import SettingError
from idiolect.data.federation import Federation
from idiolect.host.host import Host, HostSettings
from idiolect.methods import make_method
from idiolect.run.prepare import prepare
from idiolect.run.session import Session
from idiolect.run.settings import Settings

STATEFUL = "feedback + topk(share=0.2)"


def test_rows_are_saved_and_loaded(tmp_path):
    agreed = contract(channel=STATEFUL)
    engine = local_rounds(server(agreed), hosts(agreed, 2))
    for _ in range(2):
        engine.advance()
    for k, one in enumerate(engine.hosts):
        one.save(tmp_path / str(k))
    again = hosts(agreed, 2)
    for k, one in enumerate(again):
        one.load(tmp_path / str(k))
        assert one.digest() == engine.hosts[k].digest()
        assert sorted(p.name for p in (tmp_path / str(k)).iterdir()) == [
            "channel.safetensors",
            "private.safetensors",
        ]
    before = of_hosts(engine.hosts)
    assert before and all(torch.equal(t, of_hosts(again)[n]) for n, t in before.items())


def test_rows_of_other_clients_are_refused(tmp_path):
    agreed = contract()
    first, second = hosts(agreed, 2)
    first.save(tmp_path / "first")
    before = second.digest()
    with pytest.raises(ValueError, match="these are the rows of other clients"):
        second.load(tmp_path / "first")
    assert second.digest() == before
    with pytest.raises(ValueError, match="wire_ids"):
        host(agreed, first.wire_ids[:2]).load(tmp_path / "first")


@pytest.mark.parametrize("wire_ids", [[0, 1], [2, 1, 0], [0, 0, 1]])
def test_wire_ids_are_one_per_client_and_increasing(wire_ids):
    data = FEDERATION.of(EVERYONE[:3])
    with pytest.raises(ValueError, match="wire ids: one per client"):
        Host(contract(), data, torch.tensor(wire_ids), HostSettings())


def test_rows_of_clients_elsewhere_are_not_found():
    second = hosts(contract(), 2)[1]
    assert second.rows(EVERYONE).tolist() == [0, 1, 2]
    assert second.rows(torch.tensor([0, 2, 99])).tolist() == []
    assert second.rows(torch.tensor([0, 3, 5, 99])).tolist() == [0, 2]


def test_a_store_that_keeps_nothing_refuses_a_round_that_is_run_again():
    """Where everyone trains no row goes back, so that a simulation keeps none."""
    agreed = contract("ditto")
    one = host(agreed, EVERYONE, repeats=False)
    order = server(agreed).open().order
    one.update(order)
    with pytest.raises(RuntimeError, match="round 0 is run again"):
        one.update(order)


def test_a_client_alone_at_its_host_has_the_scores_it_has_among_others():
    """Also where all clients use one model, which is evaluated in one pass."""
    for method in ("fedavg", "ditto", "finetune"):
        agreed = contract(method)
        at = server(agreed)
        down = at.message(0)
        (together,) = hosts(agreed, 1)
        among = together.evaluate(0, down, EVERYONE, ("test",))["test"]
        chunked = host(agreed, EVERYONE, chunk=1)
        one_by_one = chunked.evaluate(0, down, EVERYONE, ("test",))["test"]
        torch.testing.assert_close(one_by_one.loss, among.loss)  # not in one pass: last bits
        for k in range(CLIENTS):
            single = host(agreed, EVERYONE[k : k + 1])
            alone = single.evaluate(0, down, EVERYONE, ("test",))["test"]
            assert alone.wire_ids.tolist() == [k]
            assert torch.equal(alone.loss, among.loss[k : k + 1]), (method, k)
            assert torch.equal(alone.hits, among.hits[k : k + 1]), (method, k)


# -- validation data -------------------------------------------------------------------------------
def without_validation(clients: list[int]) -> Federation:
    """The same federation where the validation samples of some clients are test samples."""
    split = []
    ids = []
    order = []
    for name, offsets in FEDERATION.offsets.items():
        for k, id in enumerate(FEDERATION.ids):
            samples = range(*offsets[k : k + 2].tolist())
            order += samples
            ids += [id] * len(samples)
            part = "test" if name == "valid" and k in clients else name
            split += [part] * len(samples)
    inputs = FEDERATION.inputs[order]
    targets = FEDERATION.targets[order].numpy()
    return Federation.from_arrays(inputs, targets, ids, split=split, classes=3)


def trained(data: Federation, hosts: int) -> Session:
    settings = Settings(batch=8, hosts=hosts)
    made = Session(prepare(make_method("dichotomy"), TASK, data, settings), seed=0, run=7)
    for _ in range(2):
        made.engine.advance()
    return made


def test_a_host_whose_clients_have_no_validation_data_is_no_exception():
    data = without_validation([0, 1])
    whole = trained(data, hosts=1)
    shared = trained(data, hosts=3)
    assert not shared.hosts[0].data.sizes("valid").any()
    for n, t in whole.server.state.items():
        assert torch.equal(t, shared.server.state[n]), n
    before = of_hosts(whole.hosts)
    after = of_hosts(shared.hosts)
    assert all(torch.equal(t, after[n]) for n, t in before.items())


def test_without_any_validation_data_a_method_that_needs_it_is_refused():
    with pytest.raises(SettingError, match="decides by validation data, and no client has any"):
        trained(without_validation(list(range(CLIENTS))), hosts=2)


# -- models of a session ---------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_every_client_has_a_model_also_where_no_row_was_ever_made(method):
    made = session(method, hosts=3, sample=1)
    made.engine.advance()
    for wire_id, id in enumerate(FEDERATION.ids):
        (at,) = [h for h in made.hosts if wire_id in h.wire_ids.tolist()]
        model = made.personal(id)
        assert model.shape == made.contract.task.x0.shape
        assert torch.equal(model, at.personal(made.server.version, made.server.message(1), wire_id))


def test_a_client_of_no_host_has_no_model_here():
    made = session("ditto")
    made.server.enrol(["elsewhere"], [10])
    with pytest.raises(SettingError, match="client: 'elsewhere' is hosted in another process"):
        made.personal("elsewhere")


def test_a_host_adopts_the_rows_of_an_earlier_stage_where_they_fit():
    agreed = contract("ditto")
    engine = local_rounds(server(agreed), hosts(agreed, 2))
    engine.advance()
    next_stage = hosts(replace(agreed, run=8), 2)
    for one, earlier in zip(next_stage, engine.hosts, strict=True):
        one.adopt(earlier)
        assert one.digest() == earlier.digest()

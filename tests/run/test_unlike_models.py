"""Runs whose groups of clients have unlike models."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

import idiolect as il
from reference import setting
from reference.fedproto import fedproto
from reference.setting import CLASSES, FEATURES, HIDDEN, SAMPLE, SEED
from reference.softmax import Network

DATA = setting.make_federation()
N = DATA.clients


class Deep(nn.Sequential):
    """One more layer than `small`, with as many features."""

    def __init__(self):
        layers = [nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, HIDDEN), nn.ReLU()]
        super().__init__(*layers, nn.Linear(HIDDEN, CLASSES))


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def linear() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


GROUP_OF = {f"c{k}": "deep" if k in (1, 2, 5) else "small" for k in range(N)}
USUAL = {"rounds": 3, "sample": SAMPLE, "batch": 8, "seed": SEED, "dtype": "float64"}


def groups(**models) -> il.TaskGroups:
    models = models or {"small": small, "deep": Deep}
    return il.TaskGroups({name: il.Task(model) for name, model in models.items()}, GROUP_OF)


def run(method, task=None, **settings) -> il.Result:
    return il.run(method, task or groups(), DATA, progress=False, **USUAL | settings)


def vectors(result) -> list[torch.Tensor]:
    return [parameters_to_vector(result.personal(i).parameters()).detach() for i in DATA.ids]


def assert_same(a, b) -> None:
    """Models and figures are equal, bit for bit."""
    for one, other in zip(vectors(a), vectors(b), strict=True):
        assert torch.equal(one, other)
    without_groups = {"model": None}
    for one, other in zip(a.clients_table(), b.clients_table(), strict=True):
        assert one | without_groups == other | without_groups
    for name in ("accuracy", "loss", "bytes", "values"):
        assert a.summary()[name] == b.summary()[name]


# -- against loops written by hand -----------------------------------------------------------------
def by_hand(method, other, **more):
    """Models of two architectures, dealt in turn; also what each client starts from."""
    names = ["small", "other"]
    task = il.TaskGroups(
        {"small": il.Task(small), "other": il.Task(other)},
        {i: names[k % 2] for k, i in enumerate(DATA.ids)},
    )
    starts = [t.under(seed=SEED, dtype=torch.float64).x0.numpy() for t in task.tasks]
    result = run(method, task, **more)
    return result, [starts[k % 2] for k in range(N)]


def test_local_on_groups_is_each_client_alone_with_its_model():
    result, starts = by_hand(il.Local(lr=0.3, steps=4), linear)
    draws = setting.draws(DATA)
    models = [setting.MODELS[name][1] for name in ("network", "logistic")]
    for k, x in enumerate(vectors(result)):
        w, (X, y) = starts[k].copy(), draws.data[k]
        for t in range(3):
            batch = draws.batches(t, k)
            for _ in range(4):
                I = next(batch)
                w = w - 0.3 * models[k % 2].gradient(w, X[I], y[I])
        np.testing.assert_allclose(x.numpy(), w, atol=1e-10)


class WithoutBias(Network):
    """A network whose hidden layer has no bias: features of another kind, and fewer numbers."""

    def split(self, x):
        V, rest = x[: self.hidden * self.features], x[self.hidden * self.features :]
        return super().split(np.concatenate([V, np.zeros(self.hidden), rest]))

    def gradient_by_outputs(self, x, a, p):
        return self._without(super().gradient_by_outputs(x, a, p))

    def gradient_through(self, x, a, slope):
        longer = np.append(x, np.zeros(self.hidden))  # of which only the length counts
        return self._without(super().gradient_through(longer, a, slope))

    def representation(self, x, a):
        V = x[: self.hidden * self.features].reshape(self.hidden, self.features)
        return np.maximum(V @ a, 0)

    def _without(self, gradient):
        low = self.hidden * self.features
        return np.delete(gradient, range(low, low + self.hidden))


def test_fedproto_over_two_architectures_is_algorithm_1_with_two_feature_extractors():
    def without_bias():
        first = nn.Linear(FEATURES, HIDDEN, bias=False)
        return nn.Sequential(first, nn.ReLU(), nn.Linear(HIDDEN, CLASSES))

    result, starts = by_hand(il.FedProto(lr=0.3, steps=4, lam=2.0), without_bias)
    draws = setting.draws(DATA)
    sizes = (FEATURES, HIDDEN, CLASSES)
    models = [(Network, WithoutBias)[k % 2](*sizes) for k in range(N)]
    expected = fedproto(
        *(models, draws.data, starts, draws.cohorts(3, SAMPLE), draws.batches, 0.3, [4] * N),
        lam=2.0,
    )
    for x, w in zip(vectors(result), expected["personal"], strict=True):
        np.testing.assert_allclose(x.numpy(), w, atol=1e-10)
    state = result.session().server.state
    np.testing.assert_allclose(state["prototypes"], expected["server prototypes"], atol=1e-10)


@pytest.mark.parametrize("method", ["local", "fedproto", "fedtgp", "lg-fedavg", "fedper:part=head"])
def test_two_groups_with_the_same_model_are_one(method):
    assert_same(run(method, groups(small=small, deep=small)), run(method, il.Task(small)))


# -- whatever carries the messages -----------------------------------------------------------------
METHODS = ["local", "fedproto", "fedtgp", "lg-fedavg", "fedrep:part=0.*", "fedmd:alignment=5"]


def data_for(method):
    return DATA.publish(8) if method.startswith("fedmd") else DATA


@pytest.mark.parametrize("method", METHODS)
def test_the_number_of_hosts_changes_nothing(method):
    task = groups()
    if method.startswith("fedrep"):  # private are the first layers, which differ
        task = groups(small=small, deep=WiderBody)
    one, three = (
        il.run(method, task, data_for(method), progress=False, hosts=h, chunk=c, **USUAL)
        for h, c in ((1, 0), (3, 1))
    )
    assert_same(one, three)


class WiderBody(nn.Sequential):
    """Of the same size as `small` behind its first layer, which has no bias."""

    def __init__(self):
        first = nn.Linear(FEATURES, HIDDEN, bias=False)
        super().__init__(first, nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


def test_a_message_as_long_as_one_of_the_models_is_coded_alike_by_all():
    """Scores of 9 public inputs in 3 classes, and 27 numbers of the small model."""
    data = DATA.publish(9)
    given = {"channel": "feedback + topk(share=0.3)", "progress": False, **USUAL}
    one, three = (il.run("fedmd", groups(), data, hosts=h, **given) for h in (1, 3))
    assert_same(one, three)
    contracts = one.session().contracts
    assert contracts[0].link == contracts[1].link
    assert len({contract.checksum for contract in contracts}) == 1


def test_a_group_may_have_running_statistics_that_another_has_not():
    class Normed(nn.Sequential):
        def __init__(self):
            layers = [nn.Linear(FEATURES, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU()]
            super().__init__(*layers, nn.Linear(HIDDEN, CLASSES))

    for models in ({"small": small, "deep": Normed}, {"small": Normed, "deep": small}):
        for method in ("fedproto", "fedmd"):
            one, three = (
                il.run(method, groups(**models), DATA.publish(8), hosts=h, progress=False, **USUAL)
                for h in (1, 3)
            )
            assert_same(one, three)
            assert one.record.notes["statistics"] == {"numbers": 7, "how": "private"}


@pytest.mark.parametrize("method", ["fedproto", "fedmd"])
def test_worker_processes_give_the_same_bits(method):
    here, there = (
        il.run(method, groups(), data_for(method), progress=False, engine=e, hosts=2, **USUAL)
        for e in ("local", "processes")
    )
    assert_same(here, there)


@pytest.mark.parametrize("method", ["fedproto", "lg-fedavg", "fedmd"])
def test_a_run_that_was_killed_continues_to_the_result_that_it_would_have_had(method, tmp_path):
    def stop(moment):
        if moment.round == 2:
            raise KeyboardInterrupt("killed")

    data, given = data_for(method), {"progress": False, "checkpoint_every": 1, **USUAL, "rounds": 4}
    whole = il.run(method, groups(), data, **given)
    with pytest.raises(KeyboardInterrupt):
        il.run(method, groups(), data, directory=tmp_path / "run", on_round=stop, **given)
    resumed = il.run(method, groups(), data, directory=tmp_path / "run", resume=True, **given)
    assert_same(resumed, whole)
    with pytest.raises(il.SettingError, match="made with another model"):
        other = groups(small=small, deep=small)
        il.run(method, other, data, directory=tmp_path / "run", resume=True, **given)


def test_a_loaded_run_has_the_models_of_every_group(tmp_path):
    made = run("fedproto", directory=tmp_path / "run")
    loaded = il.load(tmp_path / "run", task=groups())
    for one, other in zip(vectors(made), vectors(loaded), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(il.SettingError, match=r"the run had groups .*\(small, deep\); give that"):
        il.load(tmp_path / "run", task=small)
    with pytest.raises(il.SettingError, match="groups must be those of the run, small, deep"):
        il.load(tmp_path / "run", task=[small, Deep])


def test_a_loaded_run_needs_its_data_where_its_messages_are_about_public_inputs(tmp_path):
    data = DATA.publish(8)
    for method in ("fedmd", "fedproto"):
        il.run(method, groups(), data, directory=tmp_path / method, progress=False, **USUAL)
    with pytest.raises(il.SettingError, match="the run had public inputs; give"):
        il.load(tmp_path / "fedmd", task=groups()).personal("c0")
    assert il.load(tmp_path / "fedproto", task=groups()).personal("c0")
    assert il.load(tmp_path / "fedmd", task=groups(), federation=data).personal("c0")


def test_modules_that_were_given_start_every_run_and_every_resume(tmp_path):
    """Their weights are in the checkpoint, of each group."""
    torch.manual_seed(3)
    task = groups(small=small(), deep=Deep())
    made = run("fedproto", task, directory=tmp_path / "run", rounds=2)
    others = groups(small=small(), deep=Deep())  # other weights
    loaded = il.load(tmp_path / "run", task=others)
    for one, other in zip(vectors(made), vectors(loaded), strict=True):
        assert torch.equal(one, other)


# -- what is made of a result ----------------------------------------------------------------------
def test_every_client_has_the_model_of_its_group(tmp_path):
    result = run("fedproto", held_out=1, held_out_rounds=1)
    sizes = {"small": 27, "deep": 63}
    for row in result.clients_table():
        assert row["model"] == GROUP_OF[row["client"]]
        model = result.personal(row["client"])
        assert len(parameters_to_vector(model.parameters())) == sizes[row["model"]]
    X, _ = DATA.part(2, "test")
    labels = result.predict(X, "c2").labels
    np.testing.assert_array_equal(labels, result.personal("c2")(X.double()).argmax(1))
    files = result.export(tmp_path / "models")
    assert len(files) == N + 1
    assert result.summary()["settings"]["parameters"] == [27, 63]
    assert "small (d = 27, 4 clients), deep (d = 63, 3 clients)" in str(result)
    assert "27, 63 numbers" in result.card()


def test_new_clients_have_the_model_that_they_are_given():
    result = run("fedproto")
    new = il.Federation.from_arrays(
        DATA.inputs, DATA.targets, np.resize(["x", "y"], len(DATA.targets)), classes=CLASSES
    )
    own = result.personalise(new, rounds=1, models={"x": "deep", "y": "small"})
    assert [len(parameters_to_vector(own.personal(i).parameters())) for i in "xy"] == [63, 27]
    with pytest.raises(il.SettingError, match=r"client 'x' has no model \(nor have 1 others\)"):
        result.personalise(new)
    with pytest.raises(il.SettingError, match="models must be left out"):
        run("local", small).personalise(new, models={"x": "deep", "y": "small"})


def test_a_new_client_has_the_bits_that_a_held_out_one_has():
    """In the group of its own."""
    keep = [k for k in range(N) if k not in (2, 3)]
    given = {"held_out_rounds": 2, **USUAL}
    result = il.run("fedproto", groups(), DATA.of(keep), progress=False, **given)
    both = result.personalise(DATA.of([2, 3]))
    for k in (2, 3):
        alone = result.personalise(DATA.of([k])).personal(f"c{k}")
        together = both.personal(f"c{k}")
        for one, other in zip(alone.parameters(), together.parameters(), strict=True):
            assert torch.equal(one, other)


def test_tables_of_many_runs_name_every_size():
    compared = il.compare(["fedproto", "fedavg"], groups(), DATA, progress=False, **USUAL)
    assert "d = 27, 63" in compared.title
    assert [label.split()[0] for label in compared.labels] == ["fedproto", "local"]
    assert "fedavg" in compared.skipped
    swept = il.sweep("fedproto", [small, Deep], DATA, grid={"lr": [0.1]}, jobs=1, rounds=1)
    assert "d = 27, 63" in swept.title


def test_asynchronous_clients_have_the_model_of_their_group():
    one, three = (
        run("lg-fedavg", timing="arrivals", buffer=1, delays="exponential", hosts=h) for h in (1, 3)
    )
    assert_same(one, three)


def test_malicious_clients_have_the_model_of_their_group():
    one, three = (
        run("fedproto", attack="sign-flip", malicious=2, rule="median", sample=0, hosts=h)
        for h in (1, 3)
    )
    assert_same(one, three)
    assert one.summary()["malicious"]["accuracy"]


# -- what is refused -------------------------------------------------------------------------------
def refused(match, method="fedproto", task=None, **settings):
    with pytest.raises(il.SettingError, match=match):
        run(method, task, **settings)


def test_methods_that_send_whole_models_are_refused_with_those_that_do_not():
    sizes = r"which sends whole models \(w: 27 and 63 numbers\)"
    refused(f"got 'fedavg', {sizes}; methods for unlike models are local, .*fedproto", "fedavg")
    for method in ("ditto", "moon", "lp-proj", "scaffold", "fedamp", "fml", "knn-per"):
        refused("method must make sense for clients with unlike models", method)


def test_models_of_one_size_by_coincidence_are_no_part_in_common():
    """Of as many numbers, with another meaning."""

    class Turned(nn.Sequential):  # 4 x 3 and 4 biases, where `small` has 3 x 4 and 4
        def __init__(self):
            super().__init__(nn.Linear(FEATURES, 2), nn.Tanh(), nn.Linear(2, CLASSES), nn.Tanh())

    refused(
        r"the part of the models that fedper sends must be the same in all groups.*another `part`",
        "fedper:part=head",
        groups(small=small, deep=Turned),
    )
    refused("parameter by parameter, got shapes 3x4, 3 .* and 6x4, 6, 3x6, 3", "fedper:part=head")


def test_prototypes_of_other_sizes_are_refused_with_both():
    class Other(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, CLASSES))

    refused(
        r"what fedproto sends must have the same size in all groups, got 9 and 15 numbers for "
        r"'sums' of the message up \(small, deep\)",
        task=groups(small=small, deep=Other),
    )


def test_groups_must_fit_the_clients_and_each_other():
    with pytest.raises(il.SettingError, match="group: 'depe' is unknown; did you mean 'deep'"):
        il.TaskGroups({"small": small, "deep": Deep}, {"c0": "depe"})
    with pytest.raises(il.SettingError, match="groups must have one or more models"):
        il.TaskGroups([])
    refused(
        r"client 'c1' has no model \(nor have 5 others\); give it one of small, deep",
        task=il.TaskGroups({"small": small, "deep": Deep}, {"c0": "small"}),
    )
    refused(
        "no client has the model 'deep'",
        task=il.TaskGroups({"small": small, "deep": Deep}, dict.fromkeys(DATA.ids, "small")),
    )
    losses = [
        il.Task(small),
        il.Task(Deep, lambda o, t: nn.functional.cross_entropy(o, t, reduction="none")),
    ]
    refused("loss must be the same for all groups of clients", task=il.TaskGroups(losses))
    refused(
        "group 'deep': model: it does not accept inputs",
        task=groups(small=small, deep=lambda: nn.Linear(9, CLASSES)),
    )


def test_what_makes_no_sense_for_unlike_models_is_refused():
    refused("attack must not collude where groups", attack="alie", malicious=2)
    for use in (
        lambda: il.splits(groups(), DATA, rounds=1),
        lambda: il.pipeline([("fedproto", 1), ("local", 1)], groups(), DATA),
        lambda: il.advise(DATA, groups()),
    ):
        with pytest.raises(il.SettingError, match="task must be one model here, got several"):
            use()
    result = run("fedproto")
    with pytest.raises(il.SettingError, match=r"unlike ones \(d = 27, 63\), which are no rows"):
        result.session().personal_rows()
    *_, last = il.iterate("fedproto", groups(), DATA, **USUAL)
    with pytest.raises(il.SettingError, match="rows are of unlike lengths"):
        last.private()
    assert not result.seeds[0].shared_model


# -- models by name --------------------------------------------------------------------------------
def test_a_plan_of_several_models_deals_them_in_turn():
    plan = il.Plan(
        "fedproto",
        data="synthetic",
        data_options={"clients": 4, "samples": 60},
        model="mlp(hidden=8) | mlp(hidden='5,8')",
    )
    again = il.Plan.read(json.loads(json.dumps(plan.as_dict())), "plan")
    data = again.make_data()
    task = again.make_tasks(data)
    assert task.names == ("mlp(hidden=8)", "mlp(hidden='5,8')")
    assert task.numbers(data.ids).tolist() == [0, 1, 0, 1]
    assert plan.key(task, data) == again.key(again.make_tasks(data), data)
    for options, match in (
        ({"model_options": {"hidden": "9"}}, "hidden must stand in parentheses"),
        ({"task_options": {"weights": "file"}}, "weights must be left out with several models"),
    ):
        with pytest.raises(il.SettingError, match=match):
            il.Plan("local", data="synthetic", model="linear | mlp", **options).make_tasks(data)
    with pytest.raises(il.SettingError, match=r"must be one model here, got 'linear . mlp'"):
        il.Plan("local", data="synthetic", model="linear | mlp").make_task(data)

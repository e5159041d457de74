"""How a user's model is trained: any optimiser, rates by parameter, frozen parts, a given start."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import idiolect as il
from helpers import classification, private_of, run, state_of
from idiolect.cli.main import main
from idiolect.core.knobs import SettingError
from idiolect.methods import METHODS, make_method
from idiolect.testing import check_method

ADAM = {"optimizer": "adam", "optimizer_state": "private"}


def net(classes=3) -> nn.Module:
    layers = {"features": nn.Linear(6, 5), "tanh": nn.Tanh(), "head": nn.Linear(5, classes)}
    module = nn.Sequential()
    for name, layer in layers.items():
        module.add_module(name, layer)
    return module


def method(name: str) -> il.Method:
    return make_method(name, **({"dim": 5} if name.startswith("lp-proj") else {}))


# -- optimisers ------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_takes_an_optimiser_or_says_why_not(name):
    """Those whose local solver is left open take one; the others give the reason."""
    task = il.Task(net)
    settings = {"rounds": 2, "optimizer": "adam", "batch": 8}
    if method(name).traits.optimizers:
        plain = run(method(name), None, task, **settings | {"optimizer": "sgd"})
        result = run(method(name), None, task, **settings)
        assert result.summary()["loss"]["mean"] != plain.summary()["loss"]["mean"]
        assert result.summary()["bytes"] == plain.summary()["bytes"]
        assert result.record.seeds[0].gradients_per_client == pytest.approx(
            plain.record.seeds[0].gradients_per_client
        )
        return
    with pytest.raises(SettingError) as error:
        run(method(name), None, task, **settings)
    assert f"optimizer must be left out for {name.split('*')[0]}" in str(error.value)
    assert method(name).traits.fixed_step in str(error.value)
    with pytest.raises(SettingError, match=r"lr_scale must be left out for .*, got 'head\.\*=2'"):
        run(method(name), None, task, rounds=2, lr_scale="head.*=2")


def test_a_method_of_ones_own_is_told_what_to_declare():
    class Mine(il.Method):
        def update(self, task, down, private, here):
            return {"w": down["w"].expand(here.rows, -1)}, private

    with pytest.raises(SettingError, match="it declares no vectors that one may step"):
        run(Mine(), optimizer="adam")


def test_without_options_torchs_sgd_is_the_plain_step():
    plain = run(il.Ditto(), schedule="cosine")
    torchs = run(il.Ditto(), schedule="cosine", optimizer_options="momentum=0.0")
    assert torch.equal(state_of(plain)["w"], state_of(torchs)["w"])
    assert torch.equal(private_of(plain)["v"], private_of(torchs)["v"])


@pytest.mark.parametrize(
    ("name", "fields", "settings"),
    [
        ("fedavg", {"epochs": 1}, ADAM | {"lr_scale": "2.*=0.3"}),
        ("fedalt", {}, {"optimizer_options": "momentum=0.9", "optimizer_state": "private"}),
    ],
)
def test_a_method_with_private_optimisers_passes_the_suite(name, fields, settings):
    """Exact resume, any chunks and hosts, only declared messages, every kernel."""
    check_method(make_method(name, lr=0.03, **fields), **settings)


def test_a_client_keeps_its_own_momentum_and_an_untouched_one_has_none():
    result = run(il.FedAvg(steps=4), rounds=2, sample=3, **ADAM)
    rows = private_of(result)
    steps = rows["optimizer.w.count"].flatten()
    trained = il.testing.gradients_of(result)
    assert torch.equal(steps, trained) and 0 in steps.tolist()
    assert torch.equal(rows["optimizer.w.step"].flatten(), steps.float())
    momentum = rows["optimizer.w.exp_avg"]
    assert not momentum[steps == 0].any() and bool(momentum[steps > 0].any(1).all())


def test_a_client_whose_message_is_rejected_keeps_the_momentum_it_had():
    federation = classification((20,) * 4)
    first, end = federation.offsets["train"][1:3].tolist()
    federation.inputs[first:end] = torch.inf
    result = run(il.FedAvg(steps=3), federation, rounds=2, sample=4, **ADAM)
    assert sum(result.record.seeds[0].rejected.values()) == 2
    rows = private_of(result)
    assert rows["optimizer.w.count"].flatten().tolist() == [6, 0, 6, 6]
    assert bool(rows["optimizer.w.exp_avg"].isfinite().all())


def test_the_result_says_how_clients_step(tmp_path):
    settings = ADAM | {"optimizer_options": "eps=1e-6", "lr_scale": "bias=2"}
    result = run(il.FedAvg(), rounds=1, directory=tmp_path / "run", **settings)
    words = "clients step by adam (eps=1e-6), each client keeps its state"
    assert words in str(result).replace("\n", " ")
    saved = json.loads((tmp_path / "run" / "record.json").read_text())["settings"]
    assert saved["optimizer"] == "adam" and saved["optimizer_options"] == "eps=1e-6"
    assert saved["optimizer_state"] == "private" and saved["lr_scale"] == "bias=2"
    assert "state reset each round" in str(run(il.FedAvg(), rounds=1, optimizer="adam"))
    assert "clients step" not in str(run(il.FedAvg(), rounds=1))


def test_a_checkpoint_holds_the_optimisers_and_no_more(tmp_path):
    """Adam keeps two vectors of R^d, a number and a count for each client."""
    result = run(il.FedAvg(), rounds=2, directory=tmp_path / "run", **ADAM)
    (folder,) = sorted((tmp_path / "run" / "checkpoints" / "seed-0").iterdir())[-1:]
    size = (folder / "host-0" / "private.safetensors").stat().st_size
    d = result.record.parameters
    rows = 8 * (2 * d * 8 + 4 + 8)
    assert rows <= size <= rows + 2000
    assert sum(p.stat().st_size for p in folder.rglob("*")) <= result.session().most_bytes(2) + 1e5


def test_resume_with_another_optimiser_is_refused(tmp_path):
    settings = {"rounds": 2, "directory": tmp_path / "run"}
    run(il.FedAvg(), **settings, optimizer="adam")
    with pytest.raises(SettingError, match="optimizer_state was 'reset', is 'private'"):
        run(il.FedAvg(), **settings, **ADAM, resume=True)


# -- learning rates by parameter -------------------------------------------------------------------
def test_a_factor_of_zero_is_not_trained_but_sent_and_that_is_said(capsys):
    task = il.Task(net)
    result = run(il.FedAvg(), None, task, lr_scale="features.*=0, head.bias=10")
    start = task.under(dtype=torch.float64)
    end = start.layout.span("features.bias")[1]
    w = state_of(result)["w"]
    assert torch.allclose(w[:end], start.x0[:end], rtol=1e-12)  # but for the mean's rounding
    assert not torch.allclose(w[end:], start.x0[end:], rtol=1e-3)
    said = capsys.readouterr().err
    assert "35 of 53 numbers have factor 0" in said and "frozen" in said
    everything = run(il.FedAvg(), None, task).summary()["bytes"]
    assert result.summary()["bytes"] == everything


def test_an_unknown_pattern_is_refused_with_the_names_there_are():
    with pytest.raises(SettingError) as error:
        run(il.FedAvg(), None, il.Task(net), lr_scale="head.*=2, feature.*=0.1")
    assert "lr_scale: 'feature.*' matches no parameter" in str(error.value)
    assert "features.weight, features.bias, head.weight, head.bias" in str(error.value)


def test_of_two_patterns_the_later_one_wins():
    settings = {"lr_scale": "*=5, features.*=0.5, head.*=2"}
    same = {"lr_scale": "features.*=0.5, head.*=2"}
    results = [run(il.FedAvg(), None, il.Task(net), **s) for s in (settings, same)]
    assert torch.equal(state_of(results[0])["w"], state_of(results[1])["w"])


# -- frozen parts ----------------------------------------------------------------------------------
def test_frozen_parameters_are_constants_that_are_not_sent(tmp_path):
    module = net()
    task = il.Task(module, frozen="features.*")
    assert task.d == 18 and task.layout.names == ("head.weight", "head.bias")
    result = run(il.FedAvg(), None, task, dtype="float32")
    whole = run(il.FedAvg(), None, il.Task(module), dtype="float32")
    rounds_times_heard = 3 * 3
    for way in ("up", "down"):
        saved = whole.summary()["bytes"][way] - result.summary()["bytes"][way]
        assert saved == 4 * 35 * rounds_times_heard
    personal = result.personal(0)
    assert torch.equal(personal.features.weight, module.features.weight)
    assert not torch.equal(personal.head.weight, module.head.weight)
    assert module.features.weight.requires_grad  # the user's module is left alone
    result.export(tmp_path)
    exported = load_file(tmp_path / "client-000000.safetensors")
    assert exported.keys() == net().state_dict().keys()
    assert torch.equal(exported["features.weight"], module.features.weight)
    assert "frozen, neither trained nor sent: features.weight, features.bias" in str(result)


def test_words_and_patterns_name_what_is_frozen():
    assert il.Task(net, frozen="input").layout.names == ("head.weight", "head.bias")
    assert il.Task(net, frozen="output, features.bias").layout.names == ("features.weight",)
    with pytest.raises(SettingError, match=r"frozen: 'feature\.\*' matches no parameter"):
        il.Task(net, frozen="feature.*")
    with pytest.raises(SettingError, match="frozen must leave something to train"):
        il.Task(net, frozen="all")


def test_frozen_random_layers_are_remarked_on(capsys):
    run(il.FedAvg(), None, il.Task(net, frozen="features.*"), rounds=1)
    assert "35 numbers stay at a random initialisation" in capsys.readouterr().err
    run(il.FedAvg(), None, il.Task(net(), frozen="features.*"), rounds=1)
    assert capsys.readouterr().err == ""


def test_other_constants_are_another_model_to_a_resumed_run(tmp_path):
    module = net()
    settings = {"rounds": 1, "directory": tmp_path / "run"}
    run(il.FedAvg(), None, il.Task(module, frozen="features.*"), **settings)
    run(il.FedAvg(), None, il.Task(module, frozen="features.*"), **settings, resume=True)
    with torch.no_grad():
        module.features.weight += 1
    with pytest.raises(SettingError, match=r"another model: constants was"):
        run(il.FedAvg(), None, il.Task(module, frozen="features.*"), **settings, resume=True)


# -- weights from a file ---------------------------------------------------------------------------
@pytest.fixture
def given(tmp_path):
    """A module and the file of its weights."""
    torch.manual_seed(7)
    module = net()
    path = tmp_path / "model.safetensors"
    save_file(module.state_dict(), path)
    return module, path


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def test_every_seed_starts_at_the_weights_of_the_file(given):
    module, path = given
    for source in (path, str(path), path.parent):
        task = il.Task(net, weights=source)
        assert torch.equal(task.x0, flat(module))
        assert torch.equal(task.under(seed=5).x0, flat(module))
    result = run(il.FedAvg(), None, il.Task(net, weights=path), rounds=0, dtype="float32")
    assert torch.equal(flat(result.personal(3)), flat(module))
    facts = result.record.model["pretrained"]
    assert facts["file"] == "model.safetensors" and len(facts["sha256"]) == 64
    assert "models start at model.safetensors (SHA-256" in str(result)


def test_a_cache_that_holds_links_is_read(given, tmp_path):
    module, path = given
    folder = tmp_path / "snapshot"
    folder.mkdir()
    shutil.copy(path, tmp_path / "blob")
    os.symlink(tmp_path / "blob", folder / "model.safetensors")
    assert torch.equal(il.Task(net, weights=folder).x0, flat(module))


def test_half_precision_weights_are_taken_in_the_precision_of_the_run(tmp_path):
    module = net().half()
    save_file(module.state_dict(), tmp_path / "half.safetensors")
    task = il.Task(net, weights=tmp_path / "half.safetensors").under(dtype=torch.float64)
    assert torch.equal(task.x0, flat(module).double())


def test_files_that_may_hold_code_are_refused(tmp_path):
    torch.save(net().state_dict(), tmp_path / "model.pt")
    with pytest.raises(SettingError, match=r"torch.load runs code that is in the file"):
        il.Task(net, weights=tmp_path / "model.pt")


def test_what_does_not_fit_is_named(tmp_path):
    path = tmp_path / "other.safetensors"
    wrong = dict(net(classes=4).state_dict())
    wrong["tail.weight"] = wrong.pop("features.bias")
    save_file(wrong, path)
    with pytest.raises(SettingError) as error:
        il.Task(net, weights=path)
    for words in (
        "missing in the file: features.bias",
        "not in the model: tail.weight",
        "head.weight ([4, 5] in the file, [3, 5] in the model)",
        "weights_missing 'keep'",
    ):
        assert words in str(error.value)


def test_names_that_differ_by_a_beginning_alone_are_seen(tmp_path):
    save_file({f"module.{n}": t for n, t in net().state_dict().items()}, tmp_path / "m.safetensors")
    with pytest.raises(SettingError, match=r"names would agree but for the beginning 'module.'"):
        il.Task(net, weights=tmp_path / "m.safetensors")
    with pytest.raises(SettingError, match="has nothing of the model"):
        il.Task(net, weights=tmp_path / "m.safetensors", weights_missing="keep")


def test_a_head_of_another_size_is_kept_only_if_asked_and_that_is_said(tmp_path, capsys):
    path = tmp_path / "ten.safetensors"
    trained = net(classes=10)
    save_file(trained.state_dict(), path)
    task = il.Task(net, weights=path, weights_missing="keep", frozen="features.*")
    fresh = il.Task(net)
    assert torch.equal(task.module.features.weight, trained.features.weight)
    assert torch.equal(task.module.head.weight, fresh.module.head.weight)
    run(il.FedAvg(), None, task, rounds=1)
    said = capsys.readouterr().err
    assert "ten.safetensors is used in part: of another shape: head.weight ([10, 5]" in said
    assert "random initialisation" not in said


def test_own_initialisations_keep_what_the_file_gave(tmp_path):
    path = tmp_path / "features.safetensors"
    trained = net()
    save_file({n: t for n, t in trained.state_dict().items() if "features" in n}, path)
    task = il.Task(net, weights=path, weights_missing="keep")
    rows = task.draw(il.core.streams.name_keys(["a", "b"]))
    parts = task.layout.unflatten(rows)
    assert torch.equal(parts["features.weight"][1], trained.features.weight)
    assert not torch.equal(parts["head.weight"][0], parts["head.weight"][1])


def test_a_damaged_file_is_refused_by_name(given, tmp_path):
    _, path = given
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(SettingError, match=r"weights: cannot read .*cut.safetensors"):
        il.Task(net, weights=cut)
    state = net().state_dict()
    state["head.bias"][0] = torch.nan
    save_file(state, tmp_path / "nan.safetensors")
    with pytest.raises(SettingError, match=r"'head.bias' in nan.safetensors has values that are"):
        il.Task(net, weights=tmp_path / "nan.safetensors")
    with pytest.raises(SettingError, match="weights: there is no file"):
        il.Task(net, weights=tmp_path / "none.safetensors")
    with pytest.raises(SettingError, match="weights_missing must be 'refuse' without weights"):
        il.Task(net, weights_missing="keep")
    folder = tmp_path / "shards"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(SettingError, match="one model in several files"):
        il.Task(net, weights=folder)


def test_a_tied_layer_needs_one_of_its_names(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Linear(6, 6)
            self.up = nn.Linear(6, 3)
            self.again = self.up

        def forward(self, x):
            return self.again(self.down(x))

    module = Tied()
    state = {n: t for n, t in module.state_dict().items() if not n.startswith("again")}
    save_file(state, tmp_path / "tied.safetensors")
    task = il.Task(Tied, weights=tmp_path / "tied.safetensors")
    assert torch.equal(task.module.again.weight, module.up.weight)


# -- the same on the command line ------------------------------------------------------------------
@pytest.fixture
def weights(tmp_path, monkeypatch):
    """A folder of the user's with weights for the model that the command line makes."""
    monkeypatch.chdir(tmp_path)
    module = il.models.make("mlp", (60,), 10, hidden="8")
    save_file(module.state_dict(), tmp_path / "mine.safetensors")
    return module


COMMAND = ["run", "fedavg", "--rounds", "2", "--clients", "5", "--sample", "2", "--samples", "40"]
MLP = ["--model", "mlp", "--hidden", "8", "--quiet"]


def test_the_command_line_takes_weights_frozen_parts_and_optimisers(
    weights, capsys, tmp_path, monkeypatch
):
    flags = ["--weights", "mine.safetensors", "--frozen", "hidden*", "--optimizer", "adam"]
    flags += ["--optimizer-state", "private", "--directory", "run"]
    assert main([*COMMAND, *MLP, *flags]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "clients step by adam, each client keeps its state" in shown
    assert "models start at mine.safetensors" in shown
    result = il.load("run")
    first = next(result.personal(0).parameters())
    assert torch.equal(first, next(weights.parameters()))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # the weights are found from anywhere
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 0


def test_a_resumed_run_refuses_other_weights(weights, capsys, tmp_path):
    assert main([*COMMAND, *MLP, "--weights", "mine.safetensors", "--directory", "run"]) == 0
    other = il.models.make("mlp", (60,), 10, hidden="8")
    save_file(other.state_dict(), tmp_path / "mine.safetensors")
    capsys.readouterr()
    assert main(["resume", "run", "--quiet"]) == 2
    assert "was made with another model: pretrained was" in capsys.readouterr().err


def test_a_settings_file_has_a_section_for_it(weights, capsys, tmp_path):
    (tmp_path / "s.toml").write_text(
        "[method]\nname = 'fedavg'\n[run]\nrounds = 1\noptimizer = 'adamw'\n"
        "[task]\nweights = 'mine.safetensors'\nfrozen = 'output'\n"
        "[data]\nclients = 5\nsamples = 40\n[model]\nname = 'mlp'\nhidden = '8'\n"
    )
    assert main(["run", "--config", "s.toml", "--json", "--quiet", "--directory", "run"]) == 0
    found = json.loads(capsys.readouterr().out)["settings"]
    assert found["pretrained"]["file"] == "mine.safetensors"
    assert found["frozen"] == ["head.weight", "head.bias"]
    (tmp_path / "s.toml").write_text("[method]\nname = 'fedavg'\n[task]\nweight = 'x'\n")
    assert main(["run", "--config", "s.toml", "--quiet"]) == 2
    assert "task setting: 'weight' is unknown; did you mean 'weights'?" in capsys.readouterr().err

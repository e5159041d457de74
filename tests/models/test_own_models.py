"""A user's own architecture takes the place of a name: a Model, a module class or a function."""

import sys
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn

import idiolect as il
from idiolect.core.knobs import SettingError, describe, knob
from idiolect.models import MODELS, Model, make, options_of
from idiolect.models.base import Layers, dense
from idiolect.models.feedforward import MLP

OWN = """
from dataclasses import dataclass
from torch import nn
from idiolect.core.knobs import knob
from idiolect.models import Model

@dataclass(frozen=True)
class Narrow(Model):
    "One hidden layer."
    width: int = knob(2, "hidden units", low=1)

    def layers(self, inputs, outputs):
        hidden = nn.Linear(inputs[0], self.width)
        return [("hidden", hidden), ("head", nn.Linear(self.width, outputs))]

class Net(nn.Module):
    def __init__(self, inputs: tuple[int, ...], outputs: int, width: int = 2):
        super().__init__()
        self.hidden = nn.Linear(inputs[0], width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x):
        return self.head(self.hidden(x))

def net(inputs, outputs, width=2):
    return Net(inputs, outputs, width)

number = 3
built = nn.Linear(6, 3)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The name of a user's Python module in the current folder."""
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


@dataclass(frozen=True)
class Deep(Model):
    """Hidden layers of one width."""

    depth: int = knob(1, "hidden layers", low=1)

    def layers(self, inputs: tuple[int, ...], outputs: int) -> Layers:
        return dense([inputs[0], *[4] * self.depth, outputs])


class Net(nn.Module):
    def __init__(self, inputs: tuple[int, ...], outputs: int, *, width: int = 5, bias: bool = True):
        super().__init__()
        self.head = nn.Linear(inputs[0], outputs, bias=bias)
        self.width = width

    def forward(self, x):
        return self.head(x)


def two_layers(inputs, outputs, width, slope=0.1, norm=nn.Identity):
    module = nn.Sequential(nn.Linear(inputs[0], width), norm(), nn.Linear(width, outputs))
    module.slope = slope
    return module


def anything(inputs, outputs, **options):
    module = nn.Linear(inputs[0], outputs)
    module.options = options
    return module


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# -- by name -------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["Narrow", "Net", "net"])
def test_a_model_of_a_module_in_the_current_folder_is_found_by_name(own, kind):
    module = make(f"{own}:{kind}", (6,), 3, width=4)
    assert size(module) == 6 * 4 + 4 + 4 * 3 + 3
    assert module(torch.zeros(5, 6)).shape == (5, 3)


@pytest.mark.parametrize("kind", ["Narrow", "Net", "net"])
def test_options_of_a_named_model_may_be_text(own, kind):
    assert size(make(f"{own}:{kind}", (6,), 3, width="4")) == 6 * 4 + 4 + 4 * 3 + 3


@pytest.mark.parametrize(
    ("attribute", "says"),
    [
        ("number", r"^model: '.*:number' must be a subclass of Model, or a"),
        ("built", r"^model: '.*:built' must be .* already built; .* Task itself$"),
        ("dataclass", r"^model: dataclass must be a subclass of Model.* \(.*\)$"),
        ("missing", r"^model: module '.*' has no 'missing'$"),
    ],
)
def test_a_name_of_something_else_is_refused(own, attribute, says):
    with pytest.raises(SettingError, match=says):
        make(f"{own}:{attribute}", (6,), 3)


def test_a_module_that_does_not_exist_is_named():
    with pytest.raises(SettingError, match=r"^model: 'no_such_module:Net' cannot be imported"):
        make("no_such_module:Net", (6,), 3)


def test_the_table_lists_the_built_in_models_and_finds_those_of_the_user(own):
    assert list(MODELS)[:2] == ["linear", "mlp"]
    assert MODELS.find("mlp") is MLP
    assert MODELS.find(f"{own}:Net").__name__ == "Net"


def test_a_run_can_train_a_model_by_name(own):
    federation = il.data.load("synthetic", clients=3)
    task = il.Task(partial(make, f"{own}:Net", (60,), 10, width=3))
    assert task.d == 60 * 3 + 3 + 3 * 10 + 10
    il.run(il.FedAvg(), task, federation, rounds=1)


# -- the thing itself ----------------------------------------------------------------------------
def test_a_subclass_of_model_takes_the_place_of_its_name():
    torch.manual_seed(0)
    by_class = nn.utils.parameters_to_vector(make(MLP, (6,), 3, hidden="5").parameters())
    torch.manual_seed(0)
    by_name = nn.utils.parameters_to_vector(make("mlp", (6,), 3, hidden="5").parameters())
    assert torch.equal(by_class, by_name)


def test_a_users_model_has_its_own_options_and_adapters():
    assert size(make(Deep, (6,), 3, depth=2)) == (6 * 4 + 4) + (4 * 4 + 4) + (4 * 3 + 3)
    assert "adapter" in str([n for n, _ in make(Deep, (6,), 3, adapter_rank=2).named_parameters()])


def test_a_module_class_is_called_with_shape_and_outputs():
    module = make(Net, (6,), 3, width="7", bias="no")
    assert type(module) is Net and module.width == 7 and size(module) == 18


def test_a_function_gets_its_options_by_name():
    module = make(two_layers, (6,), 3, width=4, slope=1, norm=nn.ReLU)
    assert type(module[1]) is nn.ReLU and module.slope == 1.0 and size(module) == 28 + 15


def test_a_function_with_open_options_gets_all_of_them():
    assert make(anything, (6,), 3, width=4, model="x").options == {"width": 4, "model": "x"}


def test_a_partial_function_is_a_function():
    assert size(make(partial(two_layers, width=4), (6,), 3)) == 28 + 15


# -- what does not fit ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        (Deep, {"dept": 2}, r"^Deep setting: 'dept' is unknown; did you mean 'depth'\?"),
        (Deep, {"depth": 0}, r"^depth must be a whole number >= 1, got 0 "),
        (Net, {"widht": 2}, r"'widht' is unknown; did you mean 'width'\? known: bias, width$"),
        (Net, {"width": 2.5}, r"^width must be a whole number, got 2.5 \(.* Net\)$"),
        (Net, {"width": "many"}, r"^width must be a whole number, got 'many'"),
        (two_layers, {}, r"^two_layers: width must be given$"),
        (lambda i, o: nn.Linear(i[0], o), {"width": 2}, r"'width' is unknown; .* has no options$"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_those_that_do(model, options, says):
    with pytest.raises(SettingError, match=says):
        make(model, (6,), 3, **options)


@pytest.mark.parametrize(
    "model",
    [
        3,
        None,
        MLP(),  # settings, where the class is expected
        dict,
        nn.Linear(6, 3),
        lambda: nn.Linear(6, 3),
        lambda inputs: nn.Linear(6, 3),
        lambda *, inputs, outputs: nn.Linear(6, 3),
        lambda inputs, outputs, width, /: nn.Linear(6, 3),
        lambda inputs, outputs: "no module",
    ],
)
def test_an_object_that_makes_no_module_is_refused(model):
    with pytest.raises(SettingError, match=r"^model: .*subclass of Model, or a callable \(inputs"):
        make(model, (6,), 3)


@pytest.mark.parametrize(("inputs", "outputs", "field"), [((), 3, "inputs"), ((6,), 0, "outputs")])
def test_shapes_are_checked_before_a_function_is_called(inputs, outputs, field):
    with pytest.raises(SettingError, match=f"^{field}.* must be "):
        make(anything, inputs, outputs)


def test_a_refused_object_is_named():
    with pytest.raises(SettingError, match=r"^model: '3' must be a subclass of Model"):
        make(3, (6,), 3)
    with pytest.raises(
        SettingError, match=r"^model: 'Linear' must be .* got a module that is already built"
    ):
        make(nn.Linear(6, 3), (6,), 3)


# -- for flags and docs --------------------------------------------------------------------------
def test_options_describe_themselves():
    assert options_of(Deep) is Deep
    rows = {row["name"]: row for row in describe(options_of(two_layers))}
    assert set(rows) == {"slope"}  # the types of width and norm are not those of text
    assert rows["slope"]["type"] == "float" and rows["slope"]["default"] == 0.1
    assert [row["type"] for row in describe(options_of(Net))] == ["int", "bool"]


def test_an_option_without_default_is_described_as_needed():
    def net(inputs, outputs, width: int): ...

    (row,) = describe(options_of(net))
    assert row["default"] is None and "must be given" in row["help"]


def test_annotations_that_cannot_be_read_are_passed_over():
    def net(inputs: "Shape", outputs, width: "Missing" = 4):  # noqa: F821
        return nn.Linear(inputs[0], width)

    assert make(net, (6,), 3, width=2).out_features == 2
    assert describe(options_of(net)) == []

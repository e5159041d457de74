"""How a model is called, and which of its outputs count: the same in every kernel and in use."""

from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import idiolect as il
from idiolect.task.forward import arguments, tensors_of

N, CLIENTS = 36, 3
IDS = [i % CLIENTS for i in range(N)]
G = torch.Generator().manual_seed(0)
PICTURES = torch.randn(N, 4, generator=G)
TABLES = torch.randn(N, 5, generator=G)
TOKENS = torch.randint(20, (N, 5), generator=G)
CLASSES = torch.randint(3, (N,), generator=G)
NAMED = {"picture": PICTURES, "table": TABLES}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.picture, self.table = nn.Linear(4, 3), nn.Linear(5, 3)

    def both(self, picture, table):
        return self.picture(picture).tanh() + self.table(table)


class ByName(Net):
    def forward(self, table, picture):
        return self.both(picture, table)


class ByPosition(Net):
    def forward(self, picture, table):
        return self.both(picture, table)


class OneDict(Net):
    def forward(self, batch):
        return self.both(batch["picture"], batch["table"])


class OneDictWithOptions(Net):
    def forward(self, batch, *, scale=1.0, **others):
        assert not others
        return scale * self.both(batch["picture"], batch["table"])


class OneTuple(Net):
    def forward(self, pair):
        return self.both(*pair)


def federation(inputs, targets=CLASSES, **options) -> il.Federation:
    kind = "values" if targets.is_floating_point() else "classes"
    return il.Federation.from_arrays(inputs, targets, IDS, kind=kind, **options)


def same_as_by_name(module, inputs, kernel):
    """The same losses, models and predictions as the model that takes its inputs by name."""
    module.load_state_dict(REFERENCE.state_dict())
    settings = {"rounds": 2, "batch": 4, "dtype": "float64"}
    expected = il.run("ditto:lr=0.1", REFERENCE, federation(NAMED), **settings)
    result = il.run("ditto:lr=0.1", module, federation(inputs), kernel=kernel, **settings)
    losses = [r.summary()["loss"]["mean"] for r in (result, expected)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)
    ours, theirs = (
        r.predict(x, client=1).probabilities for r, x in ((result, inputs), (expected, NAMED))
    )
    assert ours == pytest.approx(theirs, abs=1e-12)


torch.manual_seed(0)
REFERENCE = ByName()


@pytest.mark.parametrize("kernel", ["vmap", "rows"])
@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (OneDict, NAMED),
        (OneDictWithOptions, NAMED),
        (ByPosition, (PICTURES, TABLES)),
        (OneTuple, (PICTURES, TABLES)),
    ],
    ids=["one dict", "one dict and options", "a tuple spread", "one tuple"],
)
def test_entries_of_a_dict_or_tuple_are_arguments_or_are_one_argument(module, inputs, kernel):
    same_as_by_name(module(), inputs, kernel)


def test_the_module_handed_out_is_the_users_and_takes_the_same_argument():
    result = il.run("fedavg", OneDict(), federation(NAMED), rounds=1, batch=4)
    with torch.no_grad():
        likely = result.personal(0)(NAMED).argmax(1)
    assert result.predict(NAMED, client=0).labels.tolist() == likely.tolist()


def test_a_forward_that_takes_anything_is_given_the_entries():
    class Anything(nn.Module):
        def forward(self, *args, **kwargs): ...

    assert arguments(Anything(), NAMED) == ((), NAMED)
    assert arguments(Anything(), (PICTURES, TABLES))[0] == (PICTURES, TABLES)


def test_a_model_that_takes_neither_form_is_refused():
    class Others(Net):
        def forward(self, pictures, tables): ...

    with pytest.raises(il.SettingError, match=r"does not accept inputs of shape .*unexpected"):
        il.run("fedavg", Others(), federation(NAMED), rounds=1)


# -- outputs -----------------------------------------------------------------------------------
class Cache:
    """Keys and values of earlier tokens, as a decoder of Hugging Face returns them."""

    def __init__(self, keys):
        self.keys = keys


class ModelOutput(OrderedDict):
    """As that of Hugging Face: entries are attributes too."""

    def __getattr__(self, name):
        return self[name]


class Decoder(nn.Module):
    """Returns its cache by default."""

    def __init__(self, as_tuple: bool):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 4), nn.Linear(4, 20)
        self.as_tuple = as_tuple

    def forward(self, input_ids=None, past_key_values=None, use_cache=True, labels=None, **others):
        h = self.words(input_ids)
        logits = self.head(h)
        cache = Cache(h) if use_cache else None
        if self.as_tuple:
            return logits, cache
        return ModelOutput(loss=None, logits=logits, past_key_values=cache)


@pytest.mark.parametrize("kernel", ["vmap", "rows"])
@pytest.mark.parametrize("as_tuple", [False, True])
@pytest.mark.parametrize("method", ["fedavg:lr=0.1", "ditto:lr=0.1"])
def test_a_decoder_with_its_cache_trains_as_the_same_without(method, as_tuple, kernel):
    class Plain(Decoder):
        def forward(self, input_ids):
            return self.head(self.words(input_ids))

    decoder, plain = Decoder(as_tuple), Plain(as_tuple)
    plain.load_state_dict(decoder.state_dict())
    data = federation({"input_ids": TOKENS}, TOKENS)
    settings = {"rounds": 1, "batch": 4, "kernel": kernel, "dtype": "float64"}
    result, expected = (il.run(method, module, data, **settings) for module in (decoder, plain))
    assert result.summary()["loss"] == expected.summary()["loss"]
    rows = {"input_ids": TOKENS[:4]}
    assert (result.predict(rows, client=0).labels == expected.predict(rows, client=0).labels).all()


def test_a_loss_of_ones_own_is_given_all_tensors_of_a_decoder():
    def loss(outputs, targets):
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        return F.cross_entropy(logits.movedim(2, 1), targets, reduction="none")

    data = federation({"input_ids": TOKENS}, TOKENS)
    for as_tuple in (False, True):
        il.run("fedavg", il.Task(Decoder(as_tuple), loss), data, rounds=1, batch=4)


def test_outputs_keep_their_form_where_all_are_tensors():
    Pair = namedtuple("Pair", "a b")
    pair = Pair(torch.ones(2), None)
    assert tensors_of(pair)._fields == ("a", "b") and tensors_of(pair).b == ()
    whole = {"a": (torch.ones(1), torch.ones(1))}
    assert tensors_of(whole) is whole


def test_a_model_without_a_tensor_among_its_outputs_is_refused():
    class Nothing(nn.Linear):
        def forward(self, x):
            return {"cache": Cache(x)}

    with pytest.raises(il.SettingError, match="outputs are not tensors"):
        il.run("fedavg", Nothing(4, 3), federation(PICTURES), rounds=1)


# -- sparse gradients, scripted modules ----------------------------------------------------------
class Bag(nn.Module):
    def __init__(self, kind, sparse):
        super().__init__()
        self.words, self.head = kind(20, 4, sparse=sparse), nn.Linear(4, 3)

    def forward(self, x):
        h = self.words(x)
        return self.head(h if h.dim() == 2 else h.mean(1))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_dense_ones(kind):
    sparse, dense = Bag(kind, True), Bag(kind, False)
    dense.load_state_dict(sparse.state_dict())
    data = federation(TOKENS)
    losses = [
        il.run("fedavg", module, data, rounds=2, batch=4, kernel=kernel).summary()["loss"]
        for module, kernel in ((sparse, "auto"), (dense, "rows"))
    ]
    assert losses[0] == losses[1]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_modules_of_torch_jit_are_refused_by_name():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    with pytest.raises(il.SettingError, match=r"model: .*Script.* is a module of torch\.jit"):
        il.Task(torch.jit.script(net))
    with pytest.raises(il.SettingError, match=r"layer '0' is a module of torch\.jit"):
        il.Task(nn.Sequential(torch.jit.trace(net[0], PICTURES[:2]), net[1]))

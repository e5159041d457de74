"""Words for the parts of a module come from its structure, whoever wrote it."""

import pytest
import torch
from torch import nn

import idiolect as il
from idiolect.core.knobs import SettingError
from idiolect.core.parts import parts_of
from idiolect.models import adapt, make


def parts(module):
    return parts_of(module, [n for n, _ in module.named_parameters()])


def starts(names):
    """The modules that parameters belong to, as few as say it all."""
    return list(dict.fromkeys(n.rpartition(".")[0] for n in names))


class Words(nn.Module):
    """torch's transformer layers between an embedding and a head."""

    def __init__(self, layers=3):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.words = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)


def of(module, prefix):
    return tuple(n for n, _ in module.named_parameters() if n.startswith(prefix))


@pytest.mark.parametrize("layers", [1, 3])
def test_input_and_output_of_a_transformer_are_its_first_and_last_block(layers):
    module = Words(layers)
    words = parts(module).words
    assert words["input"] == of(module, "encoder.layers.0.")
    assert words["output"] == of(module, f"encoder.layers.{layers - 1}.")
    assert words["embedding"] == ("words.weight",)
    assert words["head"] == ("norm.weight", "norm.bias", "head.weight", "head.bias")


def hugging_face(name):
    import transformers

    small = {"num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
    sizes = {"vocab_size": 30, "hidden_size": 8, "pad_token_id": 0}
    if name == "T5":
        config = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 3, "num_heads": 2}
        return transformers.T5ForConditionalGeneration(
            transformers.T5Config(vocab_size=30, **config)
        )
    if name == "Llama":
        sizes |= {"bos_token_id": 1, "eos_token_id": 2}
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **small))
    return transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, **small))


@pytest.mark.parametrize(
    ("name", "first", "last", "embedding", "head"),
    [
        (
            "Bert",
            "bert.encoder.layer.0.",
            "bert.encoder.layer.2.",
            "bert.embeddings.word_embeddings.weight",
            "classifier.bias",
        ),
        ("Llama", "model.layers.0.", "model.layers.2.", "model.embed_tokens", "lm_head.weight"),
        ("T5", "encoder.block.0.", "decoder.block.2.", "shared.weight", "decoder.final_layer_norm"),
    ],
)
def test_layer_lists_of_hugging_face_are_blocks(name, first, last, embedding, head):
    module = hugging_face(name)
    words = parts(module).words
    assert words["input"] == of(module, first)
    assert words["output"] == of(module, last)
    assert words["embedding"][0].startswith(embedding)
    assert words["head"][-1].startswith(head)


class Turn(nn.Module):
    """A user's own block."""

    def __init__(self, width):
        super().__init__()
        self.a = nn.Linear(width, width)
        self.b = nn.Linear(width, width)


def test_equal_blocks_of_ones_own_in_a_sequence_are_a_stack():
    module = nn.Sequential(nn.Linear(3, 8), Turn(8), Turn(8), nn.Linear(8, 2))
    found = parts(module)
    assert [starts(b) for b in found.blocks] == [["1.a", "1.b"], ["2.a", "2.b"]]
    assert found.words["input"] == found.blocks[0]
    assert found.words["embedding"] == ("0.weight", "0.bias")
    groups = nn.Sequential(nn.Linear(3, 8), nn.Sequential(Turn(8), Turn(8)), nn.Linear(8, 2))
    assert [starts(b) for b in parts(groups).blocks] == [["1.0.a", "1.0.b"], ["1.1.a", "1.1.b"]]


def test_blocks_of_different_widths_are_numbered_and_leave_first_and_last_layer_alone():
    """A ResNet: the first convolution with its norm, and the last linear layer."""
    module = make("resnet18", (3, 32, 32), 10)
    found = parts(module)
    assert len(found.blocks) == 8 and not found.stack
    assert found.words["input"] == ("conv.weight", "norm.weight", "norm.bias")
    assert found.words["output"] == ("head.weight", "head.bias")
    assert found.named("block:-1") == of(module, "block4b.")


@pytest.mark.parametrize(
    ("name", "shape", "first"),
    [
        ("linear", (6,), "head."),
        ("mlp", (6,), "hidden1."),
        ("lenet", (1, 16, 16), "conv1."),
        ("feddeper-cnn", (1, 28, 28), "conv1."),
    ],
)
def test_plain_networks_have_a_first_and_a_last_layer(name, shape, first):
    module = make(name, shape, 3)
    found = parts(module)
    assert not found.blocks
    assert found.words["input"] == found.words["embedding"] == of(module, first)
    assert found.words["output"] == found.words["head"] == of(module, "head.")


def test_a_norm_goes_with_the_layer_before_it():
    module = nn.Sequential(
        nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)
    )
    found = parts(module)
    assert [starts(layer) for layer in found.layers] == [["0", "1"], ["3"], ["5"]]
    assert found.norms == ("1.weight", "1.bias")
    assert found.biases == ("0.bias", "1.bias", "3.bias", "5.bias")
    assert found.named("layer:2") == ("3.weight", "3.bias") == found.named("layer:-2")


def test_parametrised_layers_are_layers_and_no_blocks():
    norm = nn.utils.parametrizations.weight_norm
    module = nn.Sequential(norm(nn.Linear(3, 3)), nn.ReLU(), norm(nn.Linear(3, 3)))
    assert len(parts(module).layers) == 2 and not parts(module).blocks


def test_heads_inside_of_attention_are_no_blocks_of_their_own():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(8, 4) for _ in range(3))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.ModuleList(Head() for _ in range(2))
            self.mlp = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    module = nn.Sequential(nn.Embedding(5, 8), Block(), Block(), nn.Linear(8, 5))
    assert len(parts(module).blocks) == 2
    assert parts(module).words["input"] == of(module, "1.")


def test_adapters_leave_all_words_as_they_were():
    plain = Words()
    adapted = adapt(plain, 2)

    def before(names):
        return tuple(n.replace(".layer.", ".").replace("layers.", "layers.") for n in names)

    old, new = parts(plain).words, parts(adapted).words
    for word in ("input", "output", "embedding", "head", "norms", "biases"):
        assert before(new[word]) == old[word], word


def test_frozen_parameters_do_not_count():
    task = il.Task(make("mlp", (6,), 3, hidden="5,4"), frozen="input")
    assert task.layout.names[0] == "hidden2.weight"
    assert task.layout.parts.words["input"] == ("hidden2.weight", "hidden2.bias")


@pytest.mark.parametrize(
    ("text", "private"),
    [
        ("block:1", 6 * 6 * 2 + 12),
        ("block:-1, layer:1", 6 * 6 * 2 + 12 + 24),
        ("norms", 12),
        ("norms,none", 12),
        ("none", 0),
        ("all", 24 + 2 * (6 * 6 * 2 + 12) + 12 + 14),
    ],
)
def test_words_are_joined_by_commas(text, private):
    module = nn.Sequential(nn.Linear(3, 6), Turn(6), Turn(6), nn.LayerNorm(6), nn.Linear(6, 2))
    assert len(il.Task(module).split(text).w) == private


@pytest.mark.parametrize(
    "text", ["block:3", "block:0", "block:x", "block:", "layer:9", "heads", ""]
)
def test_what_is_no_part_is_refused_with_what_would_be(text):
    module = nn.Sequential(nn.Linear(3, 6), Turn(6), Turn(6), nn.Linear(6, 2))
    with pytest.raises(SettingError) as error:
        il.Task(module).split(text)
    said = str(error.value)
    assert f"{text!r} matches no parameter" in said
    assert "block:1 to block:2" in said and "layer:1 to layer:6" in said and "1.a.weight" in said
    assert "norms" not in said  # there are none


def test_a_parameter_that_is_called_like_a_word_is_meant_before_the_word():
    module = nn.Module()
    module.head = nn.Parameter(torch.zeros(5))
    module.body = nn.Linear(3, 2)
    assert parts(module).named("head") == ("head",)


def test_one_wrong_word_among_several_is_refused():
    with pytest.raises(SettingError, match=r"'nomrs' matches no parameter"):
        il.Task(make("mlp", (6,), 3)).split("biases,nomrs")

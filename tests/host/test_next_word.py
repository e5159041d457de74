"""Next-word accuracy: words count, special tokens do not."""

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from idiolect.core.knobs import SettingError
from idiolect.host.metrics import parse_metrics

PAD, UNKNOWN, BEGIN, END = 0, 1, 2, 3
TOKENS = 9


def sentences(clients=3, seed=0):
    """Sentences of uneven length by client; client 2 has nothing but special tokens."""
    rng = np.random.default_rng(seed)
    rows, who = [], []
    for client in range(clients):
        for _ in range(20 + 10 * client):
            length = rng.integers(1, 6)
            words = rng.integers(4 if client < 2 else 1, TOKENS if client < 2 else 2, length)
            words = np.where(rng.random(length) < 0.2, UNKNOWN, words)
            row = [BEGIN, *words, END]
            rows.append(row + [PAD] * (8 - len(row)))
            who.append(client)
    return np.array(rows), who


def federation(**options):
    rows, who = sentences()
    return il.Federation.from_arrays(rows[:, :-1], rows[:, 1:], who, classes=TOKENS, **options)


class Next(nn.Module):
    """The next token from the last one alone."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(0.3 * torch.randn(TOKENS, TOKENS))

    def forward(self, tokens):
        return self.table[tokens]


def model():
    torch.manual_seed(3)
    return Next()


def counted(result, data, special):
    """(hits, words) of each client, by plain NumPy."""
    found = []
    for k, client in enumerate(data.ids):
        inputs, targets = data.part(k, "test")
        with torch.no_grad():
            predicted = result.personal(client)(inputs).argmax(-1).numpy()
        true = targets.numpy()
        hits = words = 0
        for sentence, guess in zip(true, predicted, strict=True):
            for t, p in zip(sentence, guess, strict=True):
                if t >= 0 and t not in special:
                    words += 1
                    hits += int(t == p)
        found.append((hits, words))
    return np.array(found)


@pytest.mark.parametrize("method", ["fedavg", "local"])  # one shared model, and one for each
def test_it_is_the_plain_count_of_every_client_and_of_all_together(method):
    special = (PAD, UNKNOWN, BEGIN, END)
    data = federation(special=special)
    settings = {"rounds": 3, "batch": 8, "metrics": "next_word_accuracy", "dtype": "float64"}
    result = il.run(f"{method}:lr=0.5", model(), data, **settings)
    hits, words = counted(result, data, special).T
    clients = result.seeds[0].clients
    each = [row["test_next_word_accuracy"] for row in clients]
    assert each[:2] == [hits[k] / words[k] for k in (0, 1)]
    assert words[2] == 0 and np.isnan(each[2])
    found = result.summary()["metrics"]["next_word_accuracy"]
    assert found["mean"] == pytest.approx(hits.sum() / words.sum(), abs=1e-15)
    assert 0 < found["mean"] < 1
    assert found["mean"] != result.summary()["accuracy"]["mean"]


def test_targets_that_are_ignored_do_not_count_either():
    rows, who = sentences()
    targets = np.where(rows[:, 1:] == PAD, -100, rows[:, 1:])
    data = il.Federation.from_arrays(
        rows[:, :-1], targets, who, classes=TOKENS, special=[UNKNOWN, BEGIN, END]
    )
    settings = {"rounds": 2, "batch": 8, "metrics": "next_word_accuracy"}
    result = il.run("fedavg", model(), data, **settings)
    hits, words = counted(result, data, (UNKNOWN, BEGIN, END)).T
    found = result.summary()["metrics"]["next_word_accuracy"]["mean"]
    assert found == pytest.approx(hits.sum() / words.sum(), abs=1e-15)


def test_the_tokens_may_stand_in_the_name():
    assert [m.name for m in parse_metrics("next_word_accuracy_3_0_1")] == [
        "next_word_accuracy_0_1_3"
    ]
    data = federation()
    settings = {"rounds": 2, "batch": 8, "metrics": "next_word_accuracy_0_1_2_3"}
    result = il.run("fedavg", model(), data, **settings)
    hits, words = counted(result, data, (0, 1, 2, 3)).T
    found = result.summary()["metrics"]["next_word_accuracy_0_1_2_3"]["mean"]
    assert found == pytest.approx(hits.sum() / words.sum(), abs=1e-15)


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("next_word_accuracy", "from_arrays(..., special=[0, 1]), or in the name"),
        ("next_word_accuracy_9", "there are 9 tokens, and 9 is none"),
    ],
)
def test_tokens_that_are_not_known_are_refused(metric, says):
    with pytest.raises(SettingError) as error:
        il.run("fedavg", model(), federation(), rounds=1, metrics=metric)
    assert says in str(error.value)


@pytest.mark.parametrize("special", [[9], [-1], [0.5], "a", 3])
def test_special_tokens_are_class_numbers(special):
    with pytest.raises(SettingError, match=r"special must be .*class numbers"):
        federation(special=special)

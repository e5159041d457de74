"""What cannot be had with secure sums is refused, each with its reason."""

import pytest

from idiolect.methods import METHODS, make_method
from idiolect.privacy.sums import why_not
from idiolect.privacy.sums.refusals import Beside
from idiolect.testing import task

TASK = task()


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "lp-proj", "ditto", "fedper", "feddyn"])
def test_methods_whose_server_needs_the_mean_alone_are_taken(name):
    assert why_not(make_method(name), TASK) == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rsa", "the server of rsa needs single messages, and not their mean alone"),
        ("ifca", "the server of ifca needs single messages"),
        ("fedamp", "fedamp combines nobody's messages"),
        ("fedfomo", "fedfomo combines nobody's messages"),
        ("feddane", "feddane has 2 exchanges per round"),
        ("fednova", "fednova sends parts that must arrive exactly (steps)"),
        ("dichotomy", "dichotomy sends parts that must arrive exactly (votes)"),
        ("local", "local sends nothing"),
    ],
)
def test_methods_that_need_more_are_refused(name, words):
    assert words in why_not(make_method(name), TASK, name=name)


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_has_an_answer(name):
    method = make_method(name)
    traits = method.traits
    refusal = why_not(method, method.extended(TASK), name=name)
    if traits.uncombined or not traits.linear or traits.exchanges or traits.uncompressed:
        assert refusal.startswith("method: ")


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        (Beside(rule="krum(f=2)"), "rule: 'krum(f=2)' compares single messages"),
        (Beside(channel="topk(share=0.01)"), "channel: 'topk(share=0.01)' codes single messages"),
        (Beside(asynchronous=True), "timing: 'arrivals' uses messages one by one"),
        (Beside(selection="power-of-choice"), "selection: 'power-of-choice' asks single clients"),
        (Beside(own_weights=True), "client_weights: all clients count alike"),
        (Beside(groups=True), "model: groups of clients have unlike models"),
        (Beside(attack="sign-flip"), "attack: 'sign-flip' forges single messages"),
        (Beside(heard=1), "sample must be at least 2, got 1"),
    ],
)
def test_what_needs_single_messages_is_refused(beside, words):
    assert words in why_not(make_method("fedavg"), TASK, beside)

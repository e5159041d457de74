"""Settings that cannot work are refused before the run, with the field and what it accepts."""

import pytest

from idiolect import SettingError
from run.robust.common import CLIENTS, run, server

REFUSED = [
    ({"attack": "sign-flip"}, r"malicious must be above 0 with an attack"),
    ({"malicious": 0.2}, r"attack must be given with malicious"),
    ({"malicious": 2, "attack": ""}, r"attack must be given with malicious"),
    (
        {"malicious": 7, "attack": "zero"},
        r"malicious must leave an honest client, at most 5 of 6, got 7.0",
    ),
    (
        {"malicious": 6, "attack": "zero"},
        r"malicious must leave an honest client, at most 5 of 6, got 6.0",
    ),
    (
        {"malicious": 5, "attack": "zero", "held_out": 1},
        r"malicious must leave an honest client, at most 4 of 5, got 5.0",
    ),
    ({"malicious": 1.5, "attack": "zero"}, r"malicious must be a share .*, got 1.5"),
    (
        {"malicious": 0.01, "attack": "zero"},
        r"malicious must be at least one of 6 clients, got a share of 0.01",
    ),
    ({"malicious": -1, "attack": "zero"}, r"malicious must be a number >= 0, got -1.0"),
    ({"malicious": float("nan"), "attack": "zero"}, r"malicious must be a number >= 0, got nan"),
    (
        {"attack": "sign-flap", "malicious": 1},
        r"attack: 'sign-flap' is unknown; did you mean 'sign-flip'\?",
    ),
    ({"attack": "sign-flip(st=1)", "malicious": 1}, r"'st' is unknown; did you mean 'std'\?"),
    ({"attack": "sign-flip(std=-1)", "malicious": 1}, r"std must be a number > 0, got -1.0"),
    (
        {"attack": "label-flip + data-poison", "malicious": 1},
        r"attack: 2 of its parts change the labels",
    ),
    ({"rule": "krumm(f=1)"}, r"rule: 'krumm' is unknown; did you mean 'krum'\?"),
    ({"rule": "krum(f=2)"}, r"f must be at most 1 for krum with 5 clients .*, got 2"),
    (
        {"rule": "krum(f=1)", "sample": 4},
        r"f must be at most 0 for krum with 4 clients .*, got 1",
    ),
    ({"rule": "krum", "sample": 2}, r"rule: krum needs at least 3 clients"),
    (
        {"rule": "bucketing(size=3) + trimmed-mean(f=1)"},
        r"f must be .* 2 clients.*, got 1; these are the buckets of 5 clients",
    ),
    ({"rule": "multi-krum(m=6)"}, r"m must be at most 5 for multi-krum with 5 clients, got 6"),
    (
        {"rule": "median + mean"},
        r"rule must be one rule, with no others than .* got 'median \+ mean'",
    ),
    (
        {"rule": "bucketing"},
        r"rule must be wrappers and then a rule .* got 'bucketing'",
    ),
    ({"rule": ""}, r"rule: '' is unknown"),
    ({"channel": "topkk"}, r"channel: 'topkk' is unknown; did you mean 'topk'\?"),
    ({"channel": "topk(part=1)"}, r"'part' is unknown"),
    ({"channel": "topk(share=0)"}, r"share must be a number > 0 and <= 1, got 0.0"),
    ({"channel": "topk(share=2)"}, r"share must be a number > 0 and <= 1, got 2.0"),
    ({"channel": "qsgd(levels=1)"}, r"levels must be a whole number >= 2 and <= 32768, got 1"),
    ({"channel": "dgc(sparsity=1)"}, r"sparsity must be a number >= 0 and < 1, got 1.0"),
    ({"channel": "lbgm(threshold=2)"}, r"threshold must be a number >= 0 and <= 1, got 2.0"),
    ({"channel": "sketch(k=40)"}, r"k must be at most 39, the numbers of the message, got 40"),
    ({"channel": "sketch(rows=0)"}, r"rows must be a whole number >= 1, got 0"),
    (
        {"channel": "half + topk"},
        r"channel: nothing is left to send after 'half'; it must be the last stage",
    ),
    ({"channel": "lbgm(layers=True) + half"}, r"channel: nothing is left to send after 'lbgm'"),
    ({"channel": "feedback + sketch"}, r"channel: 'sketch' is read from the sum of all messages"),
    ({"channel": "topk + sketch"}, r"channel: 'sketch' is read from the sum of all messages"),
    ({"channel": "feedback + dgc"}, r"'feedback' and 'dgc' would both send again what was lost"),
    (
        {"channel": "topk(share=0.5) + lbgm"},
        r"channel: 'lbgm' remembers coordinates, and 'topk' sends others every round",
    ),
    (
        {"channel": "topk(share=1"},
        r"channel must be NAME or NAME\(option=value, ...\), .* got 'topk\(share=1'",
    ),
    ({"channel": "half(__import__('os'))"}, r"channel must be NAME or NAME.*, got"),
    ({"channel": "topk + "}, r"channel: '' is unknown"),
]


@pytest.mark.parametrize(("settings", "says"), REFUSED, ids=[str(s) for s, _ in REFUSED])
def test_what_cannot_work_is_refused_before_the_run(settings, says, tmp_path):
    with pytest.raises(SettingError, match=says):
        run("fedavg", directory=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_a_sketch_as_large_as_the_model_is_warned_of_and_runs(capsys):
    result = run("fedavg", channel="sketch(columns=20, rows=5)")
    said = capsys.readouterr()
    assert (
        said.err.count(
            "warning: a sketch of 5 x 20 = 100 numbers is not smaller than the message of 39"
        )
        == 1
        and not said.out
    )
    assert server(result).ledger.admitted == 10


def test_a_sketch_that_fits_is_not_warned_of(capsys):
    run("fedavg", channel="sketch(columns=5, rows=3)")
    assert not capsys.readouterr().err


def test_a_method_that_sends_little_gets_a_channel_that_fits_its_message():
    """Seven numbers of lp-proj: a hundredth of them is one."""
    link = run("lp-proj-1", channel="topk(share=0.01)").session().contract.link
    assert link.channel.forms(link.parts["w"])[-1].n == 1


def test_the_largest_f_that_is_accepted_runs():
    result = run("fedavg", rule="krum(f=1)", attack="gaussian", malicious=CLIENTS - 1)
    assert not server(result).ledger.rejected

"""`idiolect splits` as a newcomer types it."""

import json
from shlex import split

import pytest
from rich.cells import cell_len

from idiolect.cli.main import main

QUICK = split(
    "--clients 4 --samples 40 --features 6 --classes 3 --model mlp --hidden 8 --batch 8 "
    "--rounds 2 --finetune-steps 3 --finetune-lr 0.1"
)


def said(capsys, *argv: str) -> tuple[str, str]:
    assert main(["splits", *argv]) == 0
    got = capsys.readouterr()
    return got.out, got.err


def refused(capsys, *argv: str) -> str:
    assert main(["splits", *argv]) == 2
    got = capsys.readouterr()
    assert got.out == "" and got.err.count("error: ") == 1
    return got.err


def test_the_table_recommends_a_part_and_says_why(capsys):
    out, err = said(capsys, *QUICK)
    for word in ("layer:1 = input", "layer:2 = output", "biases", "adapter (low-rank 4)", "‖F‖"):
        assert word in out
    assert out.count("→ ") >= 2  # the row, and the reason
    assert "validation loss" in " ".join(out.split())
    assert "seed 0: layer:1 (2 of 6), validation loss" in err  # progress


def test_it_fits_eighty_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out, _ = said(capsys, *QUICK)
    assert max(map(cell_len, out.splitlines())) <= 80
    head = next(line for line in out.splitlines() if "‖F‖  " in line)
    assert all(word in head for word in ("private", "shared", "‖F‖", "valid", "per round"))


def test_json_is_one_object_and_nothing_else(capsys):
    out, err = said(capsys, *QUICK, "--json", "--quiet", "--seeds", "2")
    found = json.loads(out)
    assert err == ""
    parts = [row["part"] for row in found["candidates"]]
    assert parts == ["none", "layer:1", "layer:2", "biases", "adapter", "all"]
    assert found["choice"] in parts and found["reasons"] and found["seeds"] == [0, 1]
    assert found["start"] == {"method": "fedavg", "rounds": 2}
    row = found["candidates"][1]
    assert row["private"] + row["shared"] == found["d"]
    assert {"gradient_left", "gradient_left_of_mean", "train_loss", "valid_loss"} <= set(row)


def test_candidates_adapters_and_start_are_the_users_to_choose(capsys):
    more = ["--parts", "output;biases", "--rank", "2", "--start", "fedavg:lr=0.5", "--json"]
    found = json.loads(said(capsys, *QUICK, *more)[0])
    names = [row["name"] for row in found["candidates"]]
    assert names == ["none", "output", "biases", "adapter (low-rank 2)", "all"]
    assert found["start"]["method"] == "fedavg lr=0.5"
    none = json.loads(said(capsys, *QUICK, "--rank", "0", "--json")[0])
    assert "adapter" not in [row["part"] for row in none["candidates"]]


def test_given_weights_are_the_start(capsys, tmp_path):
    from safetensors.torch import save_file

    from idiolect.models import make

    file = tmp_path / "start.safetensors"
    save_file(make("mlp", (6,), 3, hidden="8").state_dict(), file)
    quick = [w for w in QUICK if w not in ("--rounds", "2")]
    out, _ = said(capsys, *quick, "--weights", str(file), "--json")
    assert json.loads(out)["start"]["rounds"] == 0


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--parts", "layer:7"], "'layer:7' matches no parameter; one of input, output"),
        (["--parts", "all"], "parts must leave something to share, got 'all'"),
        (["--start", "local"], "start must be a method that has a shared model"),
        (["--start", "fedavgg"], "did you mean 'fedavg'"),
        (["--adapters", "lora"], "adapters must be one of 'low-rank'"),
        (["--adapters", "conv"], "as a ResNet has"),
        (["--part", "output"], "did you mean --parts"),
        (["--valid", "0"], "no client has validation data"),
    ],
    ids=str,
)
def test_mistakes_are_named(capsys, more, says):
    assert says in refused(capsys, *QUICK, *more)

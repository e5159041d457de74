"""An error names an argument in Python and a flag on the command line."""

import pandas as pd
import pytest
import torch

import idiolect as il
from idiolect.cli.main import main

SMALL = {"clients": 4, "samples": 40}


def run(**settings):
    return il.run("ditto", torch.nn.Linear(60, 10), il.data.load("synthetic", **SMALL), **settings)


@pytest.fixture
def visits(tmp_path):
    table = pd.DataFrame(
        {"site": list("aabb") * 5, "age": [1.0, None] * 10, "ill": [0, 1, 1, 0] * 5}
    )
    table.to_csv(tmp_path / "visits.csv", index=False)
    return tmp_path / "visits.csv"


RUN = ["run", "ditto", "--data", "synthetic", "--clients", "4", "--samples", "40", "--quiet"]
ERRORS = {
    "a field of the method": (
        lambda: il.Ditto(lr=-1),
        ["--lr", "-1"],
        "lr must be a number > 0, got -1.0",
    ),
    "a setting of the run": (
        lambda: run(rounds=-1),
        ["--rounds", "-1"],
        "rounds must be a whole number >= 0, got -1",
    ),
    "a name of two words": (
        lambda: run(eval_every=-1),
        ["--eval-every", "-1"],
        "eval_every must be a whole number >= 0, got -1",
    ),
    "an option of the data": (
        lambda: il.data.load("synthetic", clients=0),
        ["--clients", "0"],
        "clients must be a whole number >= 1, got 0",
    ),
    "what does not go together": (
        lambda: run(sample=5),
        ["--sample", "5"],
        "sample must be at most the 4 clients that can take part, got 5",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_begins_with_the_argument_in_python_and_the_flag_in_a_command(name, capsys):
    call, words, text = ERRORS[name]
    with pytest.raises(il.SettingError) as caught:
        call()
    assert str(caught.value).startswith(text)
    assert main([*RUN, *words]) == 2
    field, _, rest = text.partition(" ")
    flag = f"--{field.replace('_', '-')}"
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {flag} {rest}")


def test_an_option_in_the_middle_of_an_error_is_written_alike(visits, capsys):
    with pytest.raises(il.SettingError) as caught:
        il.data.load("table", path=str(visits), client="site", target="ill")
    assert "missing='mean'" in str(caught.value) and "drop='age'" in str(caught.value)
    assert "--" not in str(caught.value)
    table = ["--data", "table", "--path", str(visits), "--client", "site", "--target", "ill"]
    assert main(["run", "fedavg", *table]) == 2
    said = capsys.readouterr().err
    assert "--missing mean" in said and "--drop age" in said and "drop='age'" not in said


def test_a_field_that_no_flag_of_the_command_sets_stays_as_it_is(capsys):
    assert main(["compare", "fedavg:lr=-1", *RUN[2:]]) == 2
    assert "error: lr must be a number > 0" in capsys.readouterr().err

"""compare.json, pipeline.json and record.json may come from anyone: what is wrong is named."""

import json
import shutil

import pytest
from torch import nn

import idiolect as il
from helpers import classification, rewrite
from idiolect.cli.main import main
from idiolect.core.documents import expect, expect_fields, unsealed


def federation() -> il.Federation:
    return classification((15,) * 4, features=4)


def task() -> il.Task:
    return il.Task(lambda: nn.Linear(4, 3))


SMALL = ["--clients", "4", "--samples", "40", "--quiet"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A comparison, a pipeline and a run of the command line."""
    folder = tmp_path_factory.mktemp("made")
    c, p, r = (str(folder / name) for name in ("compare", "pipeline", "run"))
    assert main(["compare", "fedavg", *SMALL, "--rounds", "1", "--directory", c]) == 0
    assert main(["pipeline", "fedavg@1", "fedprox@1", *SMALL, "--directory", p]) == 0
    assert main(["run", "fedavg", *SMALL, "--rounds", "2", "--directory", r]) == 0
    return folder


@pytest.fixture
def copy(made, tmp_path):
    """A copy whose files may be changed."""

    def of(name):
        shutil.copytree(made / name, tmp_path / name)
        return tmp_path / name

    return of


def edited(path, **changes):
    rewrite(path, lambda saved: {k: v for k, v in (saved | changes).items() if v is not ...})


COMPARISON = {
    "a list": ([1, 2], "it must be an object, got a list"),
    "a text": ("fedavg", "it must be an object, got a text"),
    "an extra key": ({"colour": "red"}, "the key 'colour' is not expected"),
    "a missing key": ({"goals": ...}, "the key 'goals' is missing"),
    "folders of another type": ({"folders": "0-fedavg"}, "folders must be a list, got a text"),
    "a folder of another type": (
        {"folders": [7]},
        r"folders\[0\] must be a text, got a whole number",
    ),
    "a folder above": ({"folders": ["../x", "1-local"]}, "'../x' does not lie in the directory"),
    "an absolute folder": ({"folders": ["/etc", "1-local"]}, "'/etc' does not lie in"),
    "the folder itself": ({"folders": [".", "1-local"]}, "'.' does not lie in"),
    "a name too long": ({"folders": ["x" * 300, "1-local"]}, "File name too long"),
    "fewer labels": ({"labels": ["one"]}, "labels and folders are not as many"),
    "a count that does not exist": (
        {"goals": {"budget": 0, "target": 0.0, "count": "cents"}},
        "count must be one of 'bytes', 'values', got 'cents'",
    ),
    "another goal": ({"goals": {"budget": 0, "hope": 1}}, "'hope' in goals is not expected"),
    "half a majority": ({"majority": {"method": "majority"}}, "'label' in majority is missing"),
    "a plan with an extra key": ({"plans": [{"methods": "fedavg"}]}, r"plans\[0\]: the key"),
}


@pytest.mark.parametrize("command", ["show", "resume"])
@pytest.mark.parametrize("case", COMPARISON)
def test_a_bad_compare_json_is_refused_and_the_key_named(case, command, copy, capsys):
    change, says = COMPARISON[case]
    path = copy("compare") / "compare.json"
    if isinstance(change, dict):
        edited(path, **change)
    else:
        path.write_text(json.dumps(change))
    with pytest.raises(il.SettingError, match=says) as error:
        il.load(path.parent)
    assert str(path) in str(error.value)
    assert main([command, str(path.parent)]) == 2
    assert str(path) in capsys.readouterr().err


def test_a_linked_folder_of_a_comparison_is_refused(copy, tmp_path):
    directory = copy("compare")
    shutil.move(directory / "0-fedavg", tmp_path / "elsewhere")
    (directory / "0-fedavg").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(il.SettingError, match="'0-fedavg' is not a folder itself"):
        il.load(directory)


def test_a_folder_that_is_lost_is_named_and_made_again_on_resume(copy, capsys):
    directory = copy("compare")
    shutil.rmtree(directory / "0-fedavg")
    assert main(["show", str(directory)]) == 2
    assert f"{directory / '0-fedavg'} holds no run" in capsys.readouterr().err
    assert main(["resume", str(directory), "--quiet"]) == 0
    assert len(il.load(directory).results) == 2


def test_the_copies_themselves_are_sound(copy, capsys):
    for name in ("compare", "pipeline", "run"):
        directory = copy(name)
        assert main(["resume", str(directory), "--json", "--quiet"]) == 0, name
    assert isinstance(il.load(directory), il.Result)


PIPELINE = {
    "a list": ([], "it must be an object, got a list"),
    "an extra key": ({"colour": "red"}, "the key 'colour' is not expected"),
    "no stages": ({"stages": ...}, "the key 'stages' is missing"),
    "no stage": ({"stages": [], "plans": []}, "stages and plans are not as many"),
    "a plan too few": ({"plans": []}, "stages and plans are not as many"),
    "a stage of another type": (
        {"stages": [1, 2]},
        r"stages\[0\] must be an object, got a whole number",
    ),
    "rounds as a text": (
        {"stages": [{"method": "fedavg", "rounds": "1"}] * 2},
        r"stages\[0\].rounds must be a whole number, got a text",
    ),
    "a plan without a method": ({"plans": [{}, {}]}, r"plans\[0\]: the key 'method' is missing"),
}


@pytest.mark.parametrize("case", PIPELINE)
def test_a_bad_pipeline_json_is_refused_and_the_key_named(case, copy, capsys):
    change, _ = PIPELINE[case]
    path = copy("pipeline") / "pipeline.json"
    if isinstance(change, dict):
        edited(path, **change)
    else:
        path.write_text(json.dumps(change))
    assert main(["resume", str(path.parent)]) == 2
    err = capsys.readouterr().err
    assert str(path) in err
    with pytest.raises(ValueError, match=PIPELINE[case][1]):
        raise ValueError(err)


RECORD = {
    "a list": ([], "it must be an object, got a list"),
    "an extra key": ({"colour": "red"}, "the key 'colour' is not expected"),
    "a missing key": ({"label": ...}, "the key 'label' is missing"),
    "seeds of another type": ({"seeds": {}}, "seeds must be a list, got an object"),
    "no seed": ({"seeds": []}, "it has no seed"),
    "a seed without figures": ({"seeds": [{"seed": 0}]}, r"in seeds\[0\] is missing"),
    "a model without parameters": ({"model": {}}, "'parameters' is missing"),
    "another format": ({"format": 1}, "format must be 6"),
}


@pytest.mark.parametrize("case", RECORD)
def test_a_bad_record_json_is_refused_and_the_key_named(case, copy, capsys):
    change, says = RECORD[case]
    path = copy("run") / "record.json"
    if isinstance(change, dict):
        edited(path, **change)
    else:
        path.write_text(json.dumps(change))
    with pytest.raises(il.SettingError, match=says) as error:
        il.load(path.parent)
    assert str(path) in str(error.value)
    assert main(["show", str(path.parent)]) == 2


def test_a_record_with_other_arrays_is_refused(copy):
    directory = copy("run")
    (directory / "record.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(il.SettingError, match=r"record\.safetensors beside it"):
        il.load(directory)


@pytest.mark.parametrize("origin", [{"method": 3}, {"method": "fedavg", "colour": "red"}])
def test_a_bad_origin_in_settings_json_is_refused(origin, copy, capsys):
    directory = copy("run")
    edited(directory / "settings.json", origin=origin)
    assert main(["resume", str(directory)]) == 2
    assert "origin" in capsys.readouterr().err


# -- what they say ------------------------------------------------------------------------------
def test_a_pipeline_from_python_says_what_it_is_and_resumes_there(tmp_path, capsys):
    stages = [(il.FedAvg(), 2), (il.FedProx(), 1)]
    given = {"directory": tmp_path / "p", "sample": 2}
    first = il.pipeline(stages, task(), federation(), **given)
    saved = unsealed(json.loads((tmp_path / "p" / "pipeline.json").read_text()))
    assert saved == {
        "stages": [{"method": "fedavg", "rounds": 2}, {"method": "fedprox", "rounds": 1}]
    }
    assert main(["resume", str(tmp_path / "p")]) == 2
    assert "started from Python" in capsys.readouterr().err
    with pytest.raises(il.SettingError, match="already holds a run"):
        il.pipeline(stages, task(), federation(), **given)
    again = il.pipeline(stages, task(), federation(), resume=True, **given)
    assert [r.rounds_table() for r in again] == [r.rounds_table() for r in first]
    with pytest.raises(il.SettingError, match="made with other stages: fedavg@2, fedprox@1"):
        il.pipeline(stages[:1], task(), federation(), resume=True, **given)
    assert main(["show", str(tmp_path / "p")]) == 2
    assert "is a pipeline; load the stages inside" in capsys.readouterr().err


def test_a_comparison_is_not_continued_as_another_one(copy):
    directory = copy("compare")
    with pytest.raises(il.SettingError, match="another baselines: it was True, is False"):
        il.compare(
            ["fedavg"], task(), federation(), directory=directory, baselines=False, resume=True
        )


def test_a_killed_comparison_is_never_half_written(copy, monkeypatch):
    """Whatever happens while compare.json is written, the one from before is there."""
    directory = copy("compare")
    before = (directory / "compare.json").read_bytes()

    def dies(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", dies)
    with pytest.raises(KeyboardInterrupt):
        il.load(directory).write(directory, {"folders": []})
    assert (directory / "compare.json").read_bytes() == before


def test_an_unfinished_run_is_said_to_be_unfinished(copy, capsys):
    directory = copy("run")
    for name in ("record.json", "record.safetensors", "result.json"):
        (directory / name).unlink()
    assert main(["show", str(directory)]) == 2
    assert f"is not finished; continue it with: idiolect resume {directory}" in (
        capsys.readouterr().err
    )


def test_folders_of_several_runs_are_private(made):
    for name in ("compare", "pipeline"):
        assert (made / name).stat().st_mode & 0o777 == 0o700
        assert (made / name / f"{name}.json").stat().st_mode & 0o777 == 0o600


# -- types --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (True, int),
        (1, bool),
        (1.0, int),
        (None, str),
        ([1], list[str]),
        ({"a": [None]}, dict[str, list[int]]),
        ("x", float | None),
        ({"a": 1}, list[int]),
    ],
)
def test_what_is_not_of_its_type_is_refused(value, hint):
    with pytest.raises(ValueError, match="must be"):
        expect(value, hint)


def test_what_is_of_its_type_is_accepted():
    expect(3, float)
    expect(None, float | None)
    expect([{"a": 1.5}], list[dict[str, float]])
    expect_fields({"a": 1}, {"a": int, "b": str}, optional={"b"})

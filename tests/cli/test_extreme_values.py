"""Values beyond all bounds are refused in one short line; nothing but files is read."""

import dataclasses
import os

import pytest

from idiolect.cli.main import main
from idiolect.core.knobs import kinds_of
from idiolect.methods import METHODS
from idiolect.run.settings import SECTIONS

RUN = ["run", "fedavg", "--data", "synthetic", "--clients", "3", "--rounds", "1", "--quiet"]
DEEP = 60_000
HUGE = "1" + "0" * 30
FIELDS = {
    f.name: kinds_of(cls)[f.name]
    for cls in (*SECTIONS, METHODS.find("fedavg")[0])
    for f in dataclasses.fields(cls)
    if f.metadata and "parse" not in f.metadata and "choices" not in f.metadata
}


def refused(arguments: list[str], capsys) -> str:
    """The error of a command that takes these arguments for wrong."""
    assert main(arguments) == 2, arguments[-1][:80]
    line = capsys.readouterr().err.splitlines()[-1]  # notes may stand above it
    assert line.startswith("error: ") and len(line) < 1500
    return line


@pytest.mark.parametrize("value", [HUGE, f"-{HUGE}", "9" * 6000, "1e400", str(2**63)])
def test_a_whole_number_of_more_than_64_bits_is_refused(value, capsys, tmp_path):
    for name in (name for name, kind in FIELDS.items() if kind is int):
        flag = f"--{name.replace('_', '-')}={value}"
        line = refused([*RUN, "--directory", str(tmp_path / "d"), flag], capsys)
        assert "must be a whole number" in line and "64 bits" in line
        assert f"{flag.split('=')[0]} must" in line or f"{name} must" in line


@pytest.mark.parametrize("value", ["1e400", "-1e400", "9" * 6000, "-" * DEEP])
def test_a_number_that_is_none_is_refused(value, capsys):
    for name in (name for name, kind in FIELDS.items() if kind is float):
        flag = f"--{name.replace('_', '-')}"
        line = refused([*RUN, f"{flag}={value}"], capsys)
        assert f"{flag} must be a number" in line


@pytest.mark.parametrize("value", ["-" * DEEP + "1", "(" * DEEP + ")" * DEEP, "[" * DEEP])
@pytest.mark.parametrize(
    "flag",
    ["lr={}", "optimizer-options=a={}", "channel=topk(k={})", "frozen={}", "attack=noise({})"],
)
def test_what_is_nested_without_end_is_refused(flag, value, capsys):
    refused([*RUN, f"--{flag.format(value)}"], capsys)


def test_the_same_in_fields_of_a_method_and_in_files(capsys, tmp_path):
    refused(["compare", f"fedavg:lr={'-' * DEEP}", "--quiet"], capsys)
    refused(["compare", f"fedavg:steps={HUGE}", "--quiet"], capsys)
    refused([*RUN, "--client-weights", '{"a":' * DEEP], capsys)
    for text in (f"lr = {'-' * DEEP}", f"lr = {'[' * DEEP}", f"lr = '{'-' * DEEP}'"):
        (tmp_path / "a.toml").write_text(f"[method]\n{text}\n")
        refused([*RUN, "--config", str(tmp_path / "a.toml")], capsys)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_not_waited_for(capsys, tmp_path):
    from PIL import Image

    pipe = tmp_path / "pictures" / "a" / "x" / "pipe.png"
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    for name in ("a/x/one.png", "a/y/two.png", "b/x/three.png", "b/y/four.png"):
        (tmp_path / "pictures" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4)).save(tmp_path / "pictures" / name)
    folder = ["--data", "folder", "--path", str(tmp_path / "pictures")]
    assert "pipe.png" in refused(["run", "fedavg", *folder], capsys)
    for arguments in (
        ["--data", "table", "--path", str(pipe), "--target", "y"],
        ["--data", "mnist", "--path", str(pipe)],
        ["--config", str(pipe)],
        ["--weights", str(pipe.rename(pipe.with_suffix(".safetensors")))],
        ["--delays", f"trace(path='{pipe.with_suffix('.safetensors')}')"],
        ["--client-weights", str(pipe.with_suffix(".safetensors"))],
    ):
        refused([*RUN[:2], *arguments], capsys)
    for device in ("/dev/zero", "/dev/null"):
        refused([*RUN[:2], "--config", device], capsys)

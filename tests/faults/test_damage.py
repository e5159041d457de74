"""One flipped bit or digit in anything stored: the right figures again, or a refusal by name.

Every kind of file that is read to show figures or to continue. `make faults` flips many more.
"""

import os
import random
import re
import shutil

import pytest

from idiolect.cli.main import main

FLIPS = int(os.environ.get("IDIOLECT_FAULTS_FLIPS", "3"))  # per kind
DATA = ["--clients", "3", "--samples", "40", "--batch", "8", "--quiet"]
SMALL = ["--rounds", "2", *DATA]
SWEEP = ["sweep", "fedavg", "--grid", "lr=0.1,0.2", "--seeds", "2", "--jobs", "1", *SMALL]
TUNE = ["tune", "fedavg", "--grid", "lr=0.1,0.2", "--jobs", "1", *SMALL]
STORED = {  # kind -> its file, and the command that reads it
    "settings": ("run/settings.json", ["resume", "run"]),
    "environment": ("run/environment.json", ["resume", "run"]),
    "record": ("run/record.json", ["show", "run"]),
    "accuracy by client": ("run/record.safetensors", ["show", "run"]),
    "checkpoint": ("run/checkpoints/seed-1/*-0/checkpoint.json", ["resume", "run"]),
    "tensors": ("run/checkpoints/seed-1/*-0/server.safetensors", ["resume", "run"]),
    "journal": ("run/accuracy-seed-1.f32", ["resume", "run"]),
    "metrics": ("run/metrics.csv", ["resume", "run"]),
    "comparison": ("compare/compare.json", ["show", "compare"]),
    "resumed comparison": ("compare/compare.json", ["resume", "compare"]),
    "pipeline": ("pipeline/pipeline.json", ["resume", "pipeline"]),
    "runs of a sweep": ("sweep/runs.jsonl", [*SWEEP, "--directory", "sweep"]),
    "sweep": ("sweep/sweep.json", ["resume", "sweep"]),
    "runs of a search": ("tune/search/runs.jsonl", ["resume", "tune"]),
    "tuning": ("tune/tune.json", ["resume", "tune"]),
}
TABLES = ("metrics.csv", "table.csv", "clients.csv")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run, a comparison, a pipeline, a sweep and a tuning of the command line."""
    folder = tmp_path_factory.mktemp("made")
    words = {
        "run": ["run", "fedavg", "--seeds", "2", *SMALL],
        "compare": ["compare", "fedavg", *SMALL],
        "pipeline": ["pipeline", "fedavg@2", "fedprox@1", *DATA],
        "sweep": SWEEP,
        "tune": TUNE,
    }
    for name, command in words.items():
        command = [word for word in command if name != "pipeline" or word not in ("--rounds", "2")]
        assert main([*command, "--directory", str(folder / name)]) == 0
    return folder


def untimed(text: str) -> str:
    """The output of a command without what takes another time each time."""
    return re.sub(r'"(cpu_)?seconds": [0-9.e-]+', "", text)


def tables(folder) -> dict[str, bytes]:
    paths = [path for name in TABLES for path in sorted(folder.rglob(name))]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def damaged(content: bytes, rng: random.Random) -> bytes:
    """One bit of it flipped, or one digit another."""
    digits = [at for at, byte in enumerate(content) if chr(byte).isdigit()]
    changed = bytearray(content)
    if digits and rng.random() < 0.5:
        at = rng.choice(digits)
        changed[at] = ord(rng.choice([d for d in "0123456789" if d != chr(content[at])]))
    else:
        changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize("kind", STORED)
def test_damage_gives_the_same_figures_or_a_refusal(kind, made, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pattern, (command, *words) = STORED[kind]
    name = pattern.partition("/")[0]
    rng = random.Random(f"{kind} {FLIPS}")
    sound = {}
    for flip in range(-1, FLIPS):  # first without any damage
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        shutil.copytree(made / name, tmp_path / name)
        path = sorted(tmp_path.glob(pattern))[-1]
        if flip >= 0:
            path.write_bytes(damaged(path.read_bytes(), rng))
        capsys.readouterr()
        code = main([command, *words, "--json"])
        said = capsys.readouterr()
        if flip < 0:
            sound = {"out": untimed(said.out), **tables(tmp_path / name)}
            assert code == 0
        elif code == 0:
            assert {"out": untimed(said.out), **tables(tmp_path / name)} == sound, (flip, said.err)
        else:
            assert code == 2 and not said.out and "error: " in said.err, (flip, said.err)
            assert path.name in said.err or path.parent.name in said.err, (flip, said.err)

"""A run directory may come from anyone: it is continued, or refused with a word, and no more.

A mutator with a seed changes bytes, JSON, headers and names of a sound directory, and seals again
what it has changed, as somebody with intent would.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import idiolect as il
from helpers import classification
from idiolect import Interrupted, SettingError
from idiolect.core.files import MOST_JSON
from idiolect.run.checkpoint import CheckpointError

FEDERATION = classification((12,) * 4, features=4)
SETTINGS = {
    "rounds": 3,
    "sample": 3,
    "batch": 4,
    "seeds": 1,
    "held_out": 1,
    "held_out_rounds": 1,
    "server_optimizer": "adam",
    "server_lr": 0.01,
    "channel": "feedback + lbgm(threshold=0.9)",
    "rule": "centred-clipping",
    "memory": 1e-9,  # rows in files
}


def run(directory: Path, resume: bool = False, stop: int = 0) -> il.Result:
    def progress(seed: int, round: int, accuracy: float) -> None:
        if round == stop:
            os.kill(os.getpid(), signal.SIGINT)

    return il.run(
        il.FedProxSoft(steps=1),
        il.Task(lambda: nn.Linear(4, 3)),
        FEDERATION,
        directory=directory,
        resume=resume,
        progress=progress,
        **SETTINGS,
    )


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """A run that was stopped after its second round."""
    folder = tmp_path_factory.mktemp("sound") / "run"
    with pytest.raises(Interrupted):
        run(folder, stop=2)
    return folder


def checkpoint_of(directory: Path) -> Path:
    (path,) = (directory / "checkpoints" / "seed-0").iterdir()
    return path


def seal(path: Path) -> None:
    """Hashes as they must be for what is now in a checkpoint."""
    file = path / "checkpoint.json"
    try:
        record = json.loads(file.read_text())
        for name in record["sha256"]:
            if (path / name).is_file():
                digest = hashlib.sha256((path / name).read_bytes()).hexdigest()
                record["sha256"][name] = digest
        record.pop("seal", None)
        text = json.dumps(record)
        record["seal"] = hashlib.sha256(text.encode()).hexdigest()
        file.write_text(json.dumps(record))
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        pass  # it is no record any more


# -- the mutator -----------------------------------------------------------------------------------
def nodes(value, path=()):
    """Every place in some JSON."""
    yield path
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from nodes(item, (*path, key))


ODD = (
    None, True, False, 0, -1, 1, 2, 2**31, 2**63, -(2**70), 1e300, 1e-300, 0.5, float("nan"),
    float("inf"), "", "x", "../../x", "/tmp/idiolect-escaped", "\x1b[31m", "[/oops]", "0" * 300,
    [], {}, [[]], {"": 0}, [1, "a", None], {"a": {"b": []}},
)  # fmt: skip


def change_json(rng: random.Random, file: Path) -> None:
    value = json.loads(file.read_text())
    for _ in range(rng.choice((1, 1, 1, 3))):
        places = [p for p in nodes(value) if p]
        if not places:
            break
        place = rng.choice(places)
        holder = value
        for key in place[:-1]:
            holder = holder[key]
        kind = rng.randrange(4)
        if kind == 0 and isinstance(holder, dict):
            del holder[place[-1]]
        elif kind == 1 and isinstance(holder, dict):
            holder[rng.choice(("more", "", "../x", "id", "round"))] = rng.choice(ODD)
        elif kind == 2 and isinstance(holder[place[-1]], (int, float)):
            holder[place[-1]] += rng.choice((-1, 1, 1000))
        else:
            holder[place[-1]] = rng.choice(ODD)
    file.write_text(json.dumps(value))


def change_bytes(rng: random.Random, file: Path) -> None:
    content = bytearray(file.read_bytes())
    kind = rng.randrange(4)
    if kind == 0:
        content = content[: rng.randrange(len(content) + 1)]
    elif kind == 1:
        content += rng.randbytes(rng.randrange(1, 50))
    else:
        for _ in range(rng.choice((1, 2, 20))):
            if content:
                content[rng.randrange(len(content))] = rng.randrange(256)
    file.write_bytes(content)


def change_header(rng: random.Random, file: Path) -> None:
    """Names, types, shapes and places in the header of a safetensors file."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    name = rng.choice([n for n in header if n != "__metadata__"])
    entry = header[name]
    kind = rng.randrange(5)
    if kind == 0:
        header[rng.choice(("rows./tmp/idiolect-escaped", "rows.../../x", "state.optimizer.x"))] = (
            header.pop(name)
        )
    elif kind == 1:
        entry["dtype"] = rng.choice(("F64", "F32", "I64", "U8", "BOOL", "F8_E4M3", "x"))
    elif kind == 2:
        entry["shape"] = [rng.choice((0, 1, 2**20, 2**40)) for _ in range(rng.randrange(4))]
    elif kind == 3:
        entry["data_offsets"] = [rng.choice((0, 8, 2**60)), rng.choice((0, 8, 2**60))]
    else:
        del header[name]
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def change_tensors(rng: random.Random, file: Path) -> None:
    """A well-formed file with other numbers, names or shapes."""
    tensors = load_file(file)
    name = rng.choice(sorted(tensors))
    t = tensors[name]
    kind = rng.randrange(5)
    if kind == 0:
        bits = torch.tensor(rng.choices(range(256), k=t.numel() * t.element_size()))
        flat = bits.to(torch.uint8)
        if t.dtype != torch.bool and t.numel():
            tensors[name] = flat.view(t.dtype).view(t.shape).clone()
    elif kind == 1:
        tensors[name] = torch.full_like(t, rng.choice((0, 1, -1, 100)))
    elif kind == 2:
        tensors[name] = torch.stack([t, t]).flatten(0, 1) if t.dim() else torch.stack([t, t])
    elif kind == 3:
        tensors["rows./tmp/idiolect-escaped"] = tensors.pop(name)
    else:
        tensors[name] = t.double() if t.dtype != torch.float64 else t.float()
    save_file(tensors, file)


def change_links(rng: random.Random, directory: Path, outside: Path) -> None:
    paths = [p for p in directory.rglob("*") if not p.is_symlink()]
    path = rng.choice(paths)
    target = outside / "folder" if path.is_dir() else outside / "file"
    if rng.random() < 0.3:
        target = outside / "new"
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    path.symlink_to(target)


def mutate(rng: random.Random, directory: Path, outside: Path) -> str:
    path = checkpoint_of(directory)
    texts = [directory / "settings.json", directory / "environment.json", path / "checkpoint.json"]
    tensors = sorted(path.rglob("*.safetensors"))
    kind = rng.randrange(10)
    if kind < 4:
        file = rng.choice(texts)
        change_json(rng, file)
    elif kind < 5:
        file = rng.choice([p for p in sorted(directory.rglob("*")) if p.is_file()])
        change_bytes(rng, file)
    elif kind < 7:
        file = rng.choice(tensors)
        change_header(rng, file)
    elif kind < 9:
        file = rng.choice(tensors)
        change_tensors(rng, file)
    else:
        file = directory
        change_links(rng, directory, outside)
    if rng.random() < 0.9:
        seal(path)
    return f"{kind} {file.name}"


def snapshot(folder: Path) -> dict[str, bytes | str]:
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else "folder"
        for p in sorted(folder.rglob("*"))
    }


def hunt(sound: Path, place: Path, seeds: range) -> dict[str, int]:
    """What came of each mutated directory; nothing but refusals and sound ends is accepted."""
    outside = place / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "file").write_text("{}")
    escaped = Path("/tmp/idiolect-escaped")
    before = snapshot(outside)
    fates: dict[str, int] = {}
    for seed in seeds:
        rng = random.Random(seed)
        directory = place / "run"
        shutil.copytree(sound, directory)
        what = mutate(rng, directory, outside)
        try:
            result = run(directory, resume=True)
            state = result.session().server.state
            assert all(bool(torch.isfinite(t).all()) for t in state.values()), (seed, what)
            fate = "continued"
        except (SettingError, CheckpointError) as error:
            fate = type(error).__name__
            assert str(error)
        except Exception as error:
            raise AssertionError(f"mutation {seed} ({what}) raised {error!r}") from error
        assert snapshot(outside) == before and not escaped.exists(), (seed, what)
        fates[fate] = fates.get(fate, 0) + 1
        shutil.rmtree(directory)
    return fates


def test_a_mutated_directory_is_continued_or_refused_and_nothing_else_happens(sound, tmp_path):
    fates = hunt(sound, tmp_path, range(100))
    assert fates["CheckpointError"] > 20 and fates["SettingError"] > 5


@pytest.mark.slow
def test_thousands_of_mutated_directories(sound, tmp_path):
    hunt(sound, tmp_path, range(1000, 3000))


# -- by hand ---------------------------------------------------------------------------------------
def test_a_name_of_a_tensor_is_never_the_name_of_a_file(sound, tmp_path):
    """An absolute path for a name would leave the folder of a store whose rows are in files."""
    directory = tmp_path / "run"
    shutil.copytree(sound, directory)
    file = checkpoint_of(directory) / "host-0" / "private.safetensors"
    tensors = load_file(file)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    name = next(n for n in tensors if n.startswith("rows."))
    tensors[f"rows.{victim}"] = tensors.pop(name)
    save_file(tensors, file)
    seal(checkpoint_of(directory))
    with pytest.raises(CheckpointError, match=r"private.safetensors: .*is not expected; expected:"):
        run(directory, resume=True)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("what", ["lock", "checkpoints", "settings.json", "checkpoints/seed-0"])
def test_a_link_in_a_run_directory_is_refused(what, sound, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(sound, directory)
    moved = tmp_path / "elsewhere"
    (directory / what).rename(moved)
    (directory / what).symlink_to(moved)
    before = snapshot(tmp_path / "elsewhere") if moved.is_dir() else moved.read_bytes()
    with pytest.raises(SettingError, match="is a link or a device"):
        run(directory, resume=True)
    assert before == (snapshot(moved) if moved.is_dir() else moved.read_bytes())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_in_a_run_directory_does_not_hang(sound, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(sound, directory)
    (directory / "settings.json").unlink()
    os.mkfifo(directory / "settings.json")
    with pytest.raises(SettingError, match="is a link or a device"):
        run(directory, resume=True)


def test_a_file_larger_than_a_run_writes_is_refused_before_it_is_read(sound, tmp_path):
    """Sparse files: terabytes that take no space on the sender's disk."""
    for name, size, says in (
        ("host-0/private.safetensors", 1 << 40, "more than this run writes"),
        ("checkpoint.json", 4 * MOST_JSON + 1, "at most"),
    ):
        directory = tmp_path / name.replace("/", "-")
        shutil.copytree(sound, directory)
        os.truncate(checkpoint_of(directory) / name, size)
        with pytest.raises(CheckpointError, match=says):
            run(directory, resume=True)

"""docs/methods.md: every method in one table, made from the code.

    python -m benchmarks.methods_page            # all columns but the distance from references
    python -m benchmarks.methods_page --measure  # that one too: runs the tests of the references

Lines are those of code in the method's file. The distance from its NumPy reference is the largest
difference in any number that a run leaves behind (float64), over all its tests; it is stored in
docs/methods.json. Numbers of a message are those of a network of 2,410 parameters. What peers have
is read from the names of their files, or of the classes in them where a file holds several.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import idiolect as il
from idiolect.channels import Channel
from idiolect.methods import METHODS, NAMES, SplitMethod, make_method, values_of
from idiolect.methods.names import NamedMethod
from idiolect.server.protocol import Contract
from idiolect_papers.own.defaults import NOT_SEARCHED
from idiolect_papers.page import table

from .structure import code_lines

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "idiolect" / "methods"
STORED = ROOT / "docs" / "methods.json"
PUBLIC = 100  # public inputs, for methods that use such
PAGE = ROOT / "docs" / "methods.md"
TESTS = ROOT / "tests" / "methods"
WITH_REFERENCES = (
    *("fedavg", "shared", "drift", "personal", "mixtures"),
    *("partial", "ffgg", "lpproj", "choosing", "lora", "addressed_methods"),
    *("features", "predictors", "two_heads", "shared_features", "bayes", "unlike", "feddane"),
)

# read from lists of the files of these repositories, of all the history that is stored of them, in
# November 2026: a name is there as a file of its own
ADAPTIVE = ("fedadam", "fedyogi", "fedadagrad")
PEERS: dict[str, tuple[str, ...]] = {
    # TsingZ0/PFLlib, system/flcore/clients and servers
    "PFLlib": (
        *("local", "fedavg", "fedprox", "ditto", "pfedme", "per-fedavg", "lg-fedavg", "scaffold"),
        *("fedper", "fedrep", "fedbabu", "fedbn", "apfl", "fedala", "feddyn", "moon", "fedamp"),
        *("fedfomo", "fedproto", "fedrod", "fml", "fedpac", "gpfl"),
    ),
    # KarhouTam/FL-bench, src/client and src/server
    "FL-bench": (
        *("local", "fedavg", "fedprox", "ditto", "pfedme", "per-fedavg", "lg-fedavg", "scaffold"),
        *("fedper", "fedrep", "fedbabu", "fedbn", "apfl", "fedala", "feddyn", "fedavgm", *ADAPTIVE),
        *("moon", "fedfomo", "fedproto", "fedrod", "knn-per", "fedem", "cfl", "pfedhn", "fedpac"),
    ),
    # makgyver/fluke, fluke/algorithms
    "fluke": (
        *("fedavg", "fedprox", "ditto", "pfedme", "per-fedavg", "lg-fedavg", "scaffold", "fedsgd"),
        *("fedper", "fedrep", "fedbabu", "fedbn", "apfl", "fedala", "feddyn", "fednova", "fedavgm"),
        *("moon", "fedamp", "fedproto", "fedrod", *ADAPTIVE),
    ),
    # apple/pfl-research, pfl/algorithm
    "pfl-research": ("fedavg", "fedprox", "scaffold"),
    # google/fedjax, fedjax/algorithms; hyp_cluster is its algorithm of clusters
    "FedJAX": ("fedavg", "fedprox", "apfl", "ifca"),
    # adap/flower, the strategies, and the folders of baselines with one of these names (the list of
    # all was cut); niid_bench has four of them
    "Flower": (
        *("fedavg", "fedprox", "fedavgm", *ADAPTIVE, "scaffold", "fednova", "moon"),
        *("fedper", "fedrep", "fedbabu", "fedbn", "fedpac"),
    ),
}

HEAD = """\
# All methods in one table

Made by `python -m benchmarks.methods_page` from the code; a test holds the page to it.
[choose.md](choose.md) says which to choose, [add-a-method.md](add-a-method.md) how to write one,
[original-rows.md](original-rows.md) which of them have a row of their paper's table beside ours.

- **lines**: of code in the method's file, without docstrings and comments.
- **reference**: the largest difference from a plain NumPy version of the paper's pseudo-code, in
  any number that a run leaves behind, over all tests of it (float64).
- **up, down**: numbers per message, of a network of {d:,} parameters with 32 hidden units,
  with {public} public inputs.
- **is**: what it is with this value of a field, or this split of the model.
- **peers**: who has, or had on some branch, a file for it: {peers}.
  Looked at were, in stored copies of November 2026, the folders of algorithms of the first five,
  and Flower's strategies and those of its baselines that are named after a method of this table. No
  mark means that no such file was there.
"""
NAMES_HEAD = """\
## Other names

A name may stand for a method with fields and settings of the run; whatever is set explicitly wins.
"""
DEFAULTS_HEAD = """\
## Defaults that no search has chosen

The others are chosen by the rule of [defaults.md](defaults.md); for these its search makes no
sense, or has not been run.
"""


def page(distances: dict[str, float]) -> str:
    """The page, with the stored distances from the references."""
    task = example_task()
    rows = [row(name, task, distances) for name in METHODS]
    names = [
        {"name": f"`{name}`", "stands for": entry.words(), "peers": peers(name, entry)}
        for name, entry in NAMES.items()
    ]
    defaults = [{"method": f"`{m}`", "defaults": text} for m, text in NOT_SEARCHED.items()]
    lines = [HEAD.format(d=task.d, public=PUBLIC, peers=", ".join(PEERS)), *table(rows), ""]
    lines += [NAMES_HEAD, *table(names), "", DEFAULTS_HEAD, *table(defaults)]
    return "\n".join(lines) + "\n"


def example_task() -> il.Task:
    """A network of 2,410 parameters, with public inputs."""
    task = il.Task(lambda: il.models.make("mlp", (1, 8, 8), 10, hidden="32"))
    return task.with_public(torch.zeros(PUBLIC, 1, 8, 8))


def row(name: str, task: il.Task, distances: dict[str, float]) -> dict[str, Any]:
    """A method's row of the table."""
    method = make_method(name)
    kind = type(method)
    file = SOURCE / f"{kind.__module__.rpartition('.')[2]}.py"
    contract = Contract(method, method.extended(task), Channel(), 0)
    up = sum(method.message(contract.task).values())
    down = sum(one.down.values + one.addressed.values for one in contract.exchanges)
    return {
        "method": f"`{name}`",
        "lines": code_lines(file.read_text("utf-8")),
        "reference": f"{distances[kind.__name__]:.0e}" if kind.__name__ in distances else "–",
        "up": f"{up:,}",
        "down": f"{down:,}",
        "trains": "everyone" if method.traits.trains == "everyone" else "sampled",
        "is": "; ".join(reductions(method)) or "–",
        "peers": peers(name),
    }


def peers(name: str, entry: NamedMethod | None = None) -> str:
    """Who has a file for the method of this name, or the one that it is another name of."""
    if entry is not None and not (entry.fields or entry.run):
        name = entry.method
    return ", ".join(peer for peer, methods in PEERS.items() if name in methods) or "–"


def reductions(method: il.Method) -> Iterator[str]:
    """What a method is with some values of its fields, or some split of the model."""
    if "traits" in vars(type(method)):
        for condition, words in method.traits.reductions.items():
            values = values_of(condition).items()
            yield f"{', '.join(f'{field} {value:g}' for field, value in values)}: {words}"
    if isinstance(method, SplitMethod):
        yield f"nothing private: {method.together()}"
        yield f"all private: {method.alone()}"


def measure() -> dict[str, float]:
    """The largest distance of each method from its reference, by class, over its tests."""
    sys.path.insert(0, str(ROOT / "tests"))
    files = [str(TESTS / f"test_{name}.py") for name in WITH_REFERENCES]
    code = pytest.main(["-q", "-p", "no:xdist", "-p", "no:cacheprovider", *files])
    if code:
        raise SystemExit(f"the tests of the references ended with {code}")
    from methods.common import DISTANCES

    return dict(sorted(DISTANCES.items()))


def main(arguments: list[str]) -> None:
    """Write the page."""
    if "--measure" in arguments:
        STORED.write_text(json.dumps(measure(), indent=1) + "\n")
    PAGE.write_text(page(json.loads(STORED.read_text())))
    print(PAGE)


if __name__ == "__main__":
    main(sys.argv[1:])

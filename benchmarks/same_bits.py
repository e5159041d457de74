"""Digests of whole runs, to compare two versions of the package bit by bit.

    python -m benchmarks.same_bits > now.json
    PYTHONPATH=/path/to/another/version/src python benchmarks/same_bits.py > then.json
    diff then.json now.json

`--hosts 3` shares the clients out among three hosts (or any other setting, as --NAME VALUE), and
`--engine processes --hosts 2` among two worker processes. Attacks that read the honest messages of
a round (alie, mimic) need the engine local, and are refused there.

Only the public interface is used. Every method runs plain, and with channels, attacks, rules,
server optimisers, held-out clients and schedules. A digest covers all figures of the result,
every row of the tables by round and by client (bytes and gradients included), and the weights of
every client's own model. Losses count to nine digits, all other numbers to the last bit.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import numpy as np
import torch
from torch import nn

import idiolect as il

SIZES = (60, 25, 48, 30, 80, 36, 20, 42)
NAMES = [n for n in il.METHODS if n != "lp-proj"]
# times, and what a summary tells beside its figures: earlier versions told less
LEFT_OUT = ("seconds", "settings", "projection", "label", "heard")
COMBINATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "float64": {"dtype": "float64"},
    "weights": {"clip": 0.5, "weight_decay": 0.01, "schedule": "cosine", "batching": "epochs"},
    "qsgd": {"channel": "feedback + qsgd(levels=4)"},
    "topk": {"channel": "topk(share=0.3) + half"},
    "lbgm": {"channel": "lbgm(threshold=0.5)"},
    "sketch": {"channel": "sketch"},
    "exact sketch": {"channel": "sketch(exact=True)"},
    "dgc": {"channel": "dgc(sparsity=0.8)"},
    "sign-flip": {"attack": "sign-flip", "malicious": 2},
    "alie": {"attack": "alie", "malicious": 2, "rule": "trimmed-mean(f=1)"},
    "label-flip": {"attack": "label-flip + scaling(factor=3)", "malicious": 1, "rule": "median"},
    "krum": {"rule": "multi-krum(f=1)"},
    "centred clipping": {"rule": "centred-clipping"},
    "nnm": {"rule": "nnm(f=1) + geometric-median"},
    "bucketing": {"rule": "bucketing(size=2) + mean"},
    "adam": {"server_optimizer": "adam", "server_lr": 0.1},
    "held out": {"held_out": 2, "held_out_rounds": 3, "finetune_steps": 2},
    "all": {
        "channel": "qsgd",
        "attack": "mimic",
        "malicious": 1,
        "rule": "trimmed-mean(f=1)",
        "eval_every": 2,
    },
    "chunks": {"chunk": 3},
}


def federation() -> il.Federation:
    """Eight unlike clients of 20 to 80 samples."""
    rng = np.random.default_rng(0)
    ids = np.repeat([f"site {k}" for k in range(len(SIZES))], SIZES)
    y = np.concatenate(
        [rng.choice(10, n, p=np.roll([0.4, 0.2] + 8 * [0.05], k)) for k, n in enumerate(SIZES)]
    )
    x = 2 * np.eye(10, 20)[y] + 0.5 * rng.standard_normal((len(y), 20))
    split = np.array(["test", "valid", "train", "train", "train"])[np.arange(len(y)) % 5]
    return il.Federation.from_arrays(
        torch.from_numpy(x), y, ids, split=split, classes=10, name="bits"
    )


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 10))


def digest(result: Any, names: tuple[str, ...]) -> str:
    out = hashlib.sha256()
    summary = {
        k: v
        for k, v in result.summary().items()
        if k not in LEFT_OUT and not k.startswith("missing")
    }
    for part in (summary, result.rounds_table(), result.clients_table()):
        out.update(json.dumps(without_last_bits(part), sort_keys=True).encode())
    for name in names:
        for p in result.personal(name).parameters():
            out.update(p.detach().numpy().tobytes())
    return out.hexdigest()[:16]


def without_last_bits(value: Any, key: str = "") -> Any:
    """Losses to nine digits, everything else as it is.

    A client's loss is a sum over samples, whose last bits depend on how many are added at once.
    """
    if isinstance(value, dict):
        return {k: without_last_bits(v, key if "loss" in key else k) for k, v in value.items()}
    if isinstance(value, list):
        return [without_last_bits(v, key) for v in value]
    return f"{value:.9g}" if isinstance(value, float) and "loss" in key else value


def main() -> None:
    torch.set_num_threads(1)
    names = [a.removeprefix("--") for a in sys.argv[1::2]]
    asked = dict(zip(names, sys.argv[2::2], strict=True))
    data = federation()
    table: dict[str, dict[str, str]] = {}
    for name in NAMES:
        cls, fixed = il.METHODS[name]
        more = {"dim": 7} if name.startswith("lp-proj") else {}
        for title, settings in COMBINATIONS.items():
            method = cls(**{**fixed, **more})
            given = {
                "rounds": 4,
                "sample": 0 if getattr(method, "traits", method).hears_all else 5,
                "batch": 8,
                "seeds": 2,
                **settings,
                **asked,
            }
            task = il.Task(model)
            try:
                found = digest(il.run(method, task, data, **given), data.names)
            except il.SettingError as error:
                found = f"refused: {error}"
            table.setdefault(name, {})[title] = found
    json.dump(table, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()

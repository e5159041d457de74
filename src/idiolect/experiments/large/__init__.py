"""Do large models fit? FedAvg, pFedMe and lp-proj on ResNet-18, ResNet-34 and a transformer.

With the memory that their rounds take. `idiolect reproduce large` writes large-models.md and
large-models.json. CIFAR-10 and the State of the Union addresses are fetched if they are not there.
Every run has a process of its own, so that its peak is its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from .cases import METHODS, MODELS
from .page import line, page

_CHILD = """
import json, sys, torch
import idiolect
from idiolect.experiments.large.measure import measure
torch.set_num_threads(1)
idiolect.keep_memory()
print(json.dumps(measure(*sys.argv[1:])))
"""


def write(folder: Path) -> list[Path]:
    """Run everything (some minutes), and write large-models.md and large-models.json."""
    console = Console(stderr=True)
    found = []
    for model in MODELS:
        for method in METHODS:
            done = subprocess.run(
                [sys.executable, "-c", _CHILD, model, method],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            found.append(json.loads(done.stdout.splitlines()[-1]))
            console.print(line(found[-1]), highlight=False, soft_wrap=True)
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "large-models.md"
    figures = folder / "large-models.json"
    text.write_text(page(found))
    figures.write_text(json.dumps(found, indent=1) + "\n")
    return [text, figures]

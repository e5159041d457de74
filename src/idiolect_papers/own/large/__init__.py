"""Do large models fit? FedAvg, pFedMe and lp-proj on ResNet-18, ResNet-34 and a transformer.

With the memory that their rounds take. `idiolect reproduce large` writes large-models.md and
large-models.json. CIFAR-10 and the State of the Union addresses are fetched if they are not there.
Every run has a process of its own, so that its peak is its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...runs import Work, finished
from .cases import METHODS, MODELS
from .page import page

_CHILD = """
import json, sys, torch
import idiolect
from idiolect_papers.own.large.measure import measure
from idiolect.study.many import end_with_parent
end_with_parent(int(sys.argv[3]))
torch.set_num_threads(1)
idiolect.keep_memory()
print(json.dumps(measure(*sys.argv[1:3])))
"""


@dataclass(frozen=True)
class ModelJob(Work):
    """The figures of one run, in a process of its own that ends with this one."""

    model: str
    method: str

    def train(self) -> dict[str, Any]:
        child = subprocess.run(
            [sys.executable, "-c", _CHILD, self.model, self.method, str(os.getpid())],
            check=True,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for this process: the current run is finished
        )
        return json.loads(child.stdout.splitlines()[-1])

    def describe(self) -> str:
        return f"{self.model}, {self.method}"


def write(folder: Path) -> list[Path]:
    """Run everything (some minutes), and write large-models.md and large-models.json."""
    jobs = [ModelJob(model, method) for model in MODELS for method in METHODS]
    results = list(finished(jobs, folder, "large", workers=1).values())
    text = folder / "large-models.md"
    figures = folder / "large-models.json"
    text.write_text(page(results), encoding="utf-8")
    figures.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return [text, figures]

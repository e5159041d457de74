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
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ...result_cache import kept
from .cases import METHODS, MODELS
from .page import line, page

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


def write(folder: Path) -> list[Path]:
    """Run everything (some minutes), and write large-models.md and large-models.json."""
    console = Console(stderr=True)
    found = []
    text = folder / "large-models.md"
    figures = folder / "large-models.json"
    with kept(folder / ".large.jsonl") as keep:
        for model in MODELS:
            for method in METHODS:
                found.append(keep(partial(_measured, model, method), model, method))
                console.print(line(found[-1]), highlight=False, soft_wrap=True)
        text.write_text(page(found), encoding="utf-8")
        figures.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return [text, figures]


def _measured(model: str, method: str) -> dict[str, Any]:
    """The figures of one run, in a process of its own that ends with this one."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, model, method, str(os.getpid())],
        check=True,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C is for this process: the run at work is finished
    )
    return json.loads(done.stdout.splitlines()[-1])

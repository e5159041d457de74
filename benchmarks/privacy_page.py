"""docs/privacy.md: what privacy holds for which method, made from the code.

python -m benchmarks.privacy_page
"""

from __future__ import annotations

from pathlib import Path

from idiolect.channels import Channel
from idiolect.methods import METHODS, make_method
from idiolect.privacy import PROTECTIONS, Protection
from idiolect.privacy.coverage import why_not
from idiolect.server.protocol import Contract

from .methods_page import example_task

ROOT = Path(__file__).parents[1]
TEMPLATE = Path(__file__).with_name("privacy.md.in")
PAGE = ROOT / "docs" / "privacy.md"


def protections() -> str:
    """A row per protection."""
    rows = []
    for name in PROTECTIONS.built_in:
        kind = PROTECTIONS.find(name)
        adds = (kind.__doc__ or "").split(":")[0]
        sampling = "no" if kind.at_client or kind.in_sums else "yes, with `--selection poisson`"
        if kind.unit == "sample":
            sampling = "yes, of samples in mini-batches"
        cells = (f"`{name}`", adds, kind.against, kind.trusted, sampling)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def methods() -> str:
    """A row per method: under which protections it is covered, or why not."""
    kinds = [PROTECTIONS.find(name)() for name in PROTECTIONS.built_in]
    heading = f"| method | {' | '.join(kind.title for kind in kinds)} |"
    rows = [heading, f"|{'---|' * (len(kinds) + 1)}"]
    for name in METHODS:
        cells = [_cell(name, kind) for kind in kinds]
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(name: str, protection: Protection) -> str:
    method = make_method(name)
    task = method.extended(example_task())
    if not any(method.message(task).values()):
        return "nothing is sent"
    contract = Contract(method, task, Channel(), 0)
    return why_not(method, task, protection, contract.addresses) or "yes"


def page() -> str:
    """The page as it should be."""
    text = TEMPLATE.read_text()
    return text.replace("{protections}", protections()).replace("{methods}", methods())


if __name__ == "__main__":
    PAGE.write_text(page())

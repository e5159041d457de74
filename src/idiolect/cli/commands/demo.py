"""`idiolect demo`: a federation that helps its clients, and one that does not."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from ...core.files import on_disk
from ...report.console import ERR, OUT, say
from ...report.plots import methods_picture
from ...run.settings import Settings
from ...study.compare import Comparison
from ..options import Parser, TrainingParser
from ..output import Output, emit
from .train import BASELINES, train_plans

PICTURE = "demo.png"
CHANGED = ("rounds", "seeds", "threads")  # settings that the user may change


@dataclass(frozen=True)
class DemoCase:
    """One comparison of the demo; its settings are in demo-NAME.toml."""

    name: str
    title: str
    setting: str  # what is compared
    reading: str  # what the table says

    @property
    def file(self) -> Path:
        return Path(__file__).with_name(f"demo-{self.name}.toml")


CASES = (
    DemoCase(
        "digits",
        "18 samples per client: federation helps",
        "1. Handwritten digits: 60 clients, each with 18 pictures to learn four of the ten digits "
        "from. Every client is tested on its own pictures.",
        "Reading it: alone, clients have too few pictures (local). One model for all (fedavg) is "
        "better, and a model for each that learns from the others (finetune, ditto) better still.",
    ),
    DemoCase(
        "synthetic",
        "202 samples, little in common: it does not",
        "2. Synthetic(0, 0): 100 clients with 202 samples each, whose data have little in common.",
        "Reading it: one class already answers most of a client's questions (majority). One model "
        "for all (fedavg, fedprox) is worse than that. lp-proj sends 21 numbers per message "
        "instead of 610, and is far better than local with one step per round; but local with as "
        "many gradients is as good: what it gains here is compute, not collaboration.",
    ),
)


def demo(argv: list[str]) -> None:
    """Compare methods where federation helps, and where it does not."""
    parser = Parser("demo", output=("directory", "json", "quiet"))
    others = {f.name for f in dataclasses.fields(Settings)} - set(CHANGED)
    parser.add_fields("run", Settings, "settings of both comparisons", others)
    parsed = parser.parse(argv)
    output = parsed.output
    directory = output.new_directory("demo")
    changes = [
        word
        for name, value in parser.values(parsed, "run").items()
        for word in (f"--{name}", str(value))
    ]
    comparisons = {}
    for case in CASES:
        ERR.print(case.setting, highlight=False)
        comparisons[case.name] = _compared(case, changes, directory / case.name, output)
        if not output.json:
            OUT.print(comparisons[case.name].table(OUT.width), highlight=False)
        ERR.print(case.reading, "", sep="\n", highlight=False)
    emit(output.json, {name: one.summary() for name, one in comparisons.items()})
    panels = [(case.title, comparisons[case.name].summary()) for case in CASES]
    with on_disk("the picture", directory / PICTURE, any_error=True):
        methods_picture(panels, directory / PICTURE)
        say(f"picture: {directory / PICTURE}")
    for case in CASES:
        say(f"run directory: {directory / case.name}")


def _compared(case: DemoCase, changes: list[str], directory: Path, output: Output) -> Comparison:
    request = TrainingParser("compare").request(["--config", str(case.file), *changes])
    return train_plans(request.plans("demo", request.file.methods), BASELINES, directory, output)

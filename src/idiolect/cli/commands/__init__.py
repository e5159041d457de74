"""The commands: where each is, how it is called, and what it is for."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command of the command line."""

    function: str  # module:function of this folder; "" = an entry point of another package
    usage: str
    text: str

    @property
    def sentence(self) -> str:
        """What the command is for, as its help begins."""
        return f"{self.text[0].upper()}{self.text[1:]}{'' if self.text.endswith('?') else '.'}"


COMMANDS = {
    "demo": Command(
        "demo:demo",
        "",
        "where federation helps and where it does not, in under a minute, without a download",
    ),
    "run": Command("train:run", "METHOD", "train one method, or stages METHOD@ROUNDS as one run"),
    "compare": Command(
        "train:compare",
        "METHODS…",
        "train several methods on the same data, with Local at equal compute",
    ),
    "sweep": Command(
        "study:sweep",
        "METHODS… --grid NAME=VALUES",
        "every combination of a grid with every seed, on all cores, as one table",
    ),
    "tune": Command(
        "study:tune",
        "METHODS… [--grid … | --space FILE | --trials N]",
        "choose settings on validation data, then train with them and test",
    ),
    "advise": Command(
        "study:advise",
        "[METHODS…]",
        "should these clients learn together at all, by which method, and who gains by it?",
    ),
    "pipeline": Command(
        "train:pipeline", "STAGES…", "stages as one run: pre-train, personalise, fine-tune"
    ),
    "splits": Command(
        "study:splits",
        "",
        "which part of your model should be personal: each measured, one recommended",
    ),
    "init": Command("init:init", "TABLE", "write a settings file for your own table"),
    "resume": Command("runs:resume", "RUN", "continue an interrupted run, exactly"),
    "show": Command("runs:show", "RUNS…", "the table of finished runs again"),
    "card": Command(
        "card:card",
        "RUN [-o card.md]",
        "the model card of a run: trained on what, how, and for whom it works",
    ),
    "export": Command(
        "models:export", "RUN", "every client's personal model as safetensors; one as ONNX or pt2"
    ),
    "predict": Command(
        "models:predict", "RUN --data FILE", "predictions of personal models for rows of a table"
    ),
    "personalise": Command(
        "models:personalise", "RUN --data FILE", "personal models for clients that join later"
    ),
    "host": Command(
        "host:host",
        "start | status | export | predict",
        "take part in a federation with your own data: what leaves, your model, its predictions",
    ),
    "deploy": Command(
        "deploy:deploy",
        "init | server | site | run | stop DIR",
        "a federation of real sites that keep their data, carried by Flower",
    ),
    "list": Command(
        "list:list_kind",
        "methods | channels | attacks | rules | selections | protections | augmentations | kernels "
        "| projections",
        "what there is, when to use it, what it costs; --measure: on your data and model",
    ),
    "data": Command(
        "data:data",
        "list | get NAME | show NAME",
        "data sets: what there is, get one, see who has what",
    ),
    "reproduce": Command("", "NAME", "a stored table again, by name"),
}

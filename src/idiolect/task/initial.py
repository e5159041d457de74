"""How a model starts: weights from a file, and parameters that are constants."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ..core.files import check_regular, given_path
from ..core.knobs import Knobs, SettingError, knob
from ..core.parts import parts_of
from ..core.tensors import Shapes, file_shapes
from ..core.types import State
from .layout import matching

SUFFIX = ".safetensors"
IN_A_FOLDER = f"model{SUFFIX}"  # as Hugging Face calls it
MISSING = ("refuse", "keep")
_NAMED = 8  # parameters that a message names


@dataclass(frozen=True)
class Initial(Knobs):
    """Where every run of a task starts: weights from a file, frozen parameters."""

    frozen: str = knob(
        "",
        "parameters that are constants, neither trained nor sent: a word of docs/splits.md "
        "(input, output, block:1), or names (features.*)",
    )
    weights: str = knob(
        "",
        "a safetensors file, or a folder with model.safetensors, whose weights the model starts at",
    )
    weights_missing: str = knob(
        "refuse",
        "parameters that the file lacks or has in another shape: refuse, or keep them as they are "
        "initialised",
        choices=MISSING,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights_missing != "refuse" and not self.weights:
            raise SettingError(
                "weights_missing must be 'refuse' without weights, got 'keep': "
                "it says what to do about parameters that the file lacks"
            )

    def apply(self, module: nn.Module) -> None:
        """Weights from the file into a new module, in place; then freeze what is to be frozen."""
        if self.weights:
            self._load(module)
        if self.frozen:
            names = [n for n, _ in module.named_parameters()]
            parts = parts_of(module, names)
            for name, is_frozen in zip(names, matching(self.frozen, parts, "frozen"), strict=True):
                if is_frozen:
                    module.get_parameter(name).requires_grad_(False)
            if not any(p.requires_grad for p in module.parameters()):
                raise SettingError(
                    f"frozen must leave something to train, got {self.frozen!r}: it matches all of "
                    f"{', '.join(names)}"
                )

    def facts(self, module: nn.Module) -> dict[str, Any]:
        """Its part of a run's identity; a run is resumed only with the same file."""
        out: dict[str, Any] = {}
        if self.weights:
            out["pretrained"] = {"file": self.path.name, "sha256": self._file[0]}
            if self.weights_missing != "refuse":
                out["pretrained"]["missing"] = self.weights_missing
        if self.frozen:
            out["frozen"] = [n for n, p in module.named_parameters() if not p.requires_grad]
        return out

    def notes(self, module: nn.Module, random: bool) -> list[str]:
        """Notes for the user; `random` where the model is re-initialised for each seed."""
        notes = []
        if self.weights and self.weights_missing == "keep":
            wrong = _Differences.between(self._file[1], module)
            if wrong:
                notes.append(f"weights: {self.path.name} is used in part: {wrong.words}")
        if self.frozen and random and not self.weights:
            still = sum(t.numel() for t in constants(module).values())
            notes.append(
                f"frozen: {still:,} numbers stay at a random initialisation; give weights, or a "
                "module that has been trained, if that is not meant"
            )
        return notes

    # -- the file --------------------------------------------------------------------------------
    @cached_property
    def path(self) -> Path:
        """The file itself, of a folder the one inside."""
        path = given_path(self.weights, "weights")
        if path.is_dir():
            index = path / f"{IN_A_FOLDER}.index.json"
            path = path / IN_A_FOLDER
            if not path.exists() and index.exists():
                raise SettingError(
                    f"weights: {self.weights!r} holds one model in several files, which is not "
                    "read; save it as one (max_shard_size), or give one of the files and "
                    "weights_missing 'keep'"
                )
        if path.suffix != SUFFIX:
            raise SettingError(
                f"weights must be a {SUFFIX} file, got {path.name!r}: it holds numbers "
                "alone: torch.load runs code that is in the file. Convert it once where you trust "
                "it: safetensors.torch.save_file(model.state_dict(), 'model.safetensors')"
            )
        if not path.exists():
            raise SettingError(f"weights: there is no file {str(path)!r}")
        return path

    @cached_property
    def _file(self) -> tuple[str, Shapes]:
        """The SHA-256 of the file, and what its header says is in it."""
        real = self.path.resolve()  # a cache of Hugging Face holds links
        try:
            check_regular(real)
            with real.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            return digest, file_shapes(real)
        except (OSError, ValueError) as error:
            raise SettingError(f"weights: cannot read {str(self.path)!r}: {error}") from None

    @cached_property
    def _values(self) -> dict[str, Tensor]:
        return {}  # read once, for all seeds and clients

    def _load(self, module: nn.Module) -> None:
        """Every parameter and buffer that the file has; names and shapes are compared first."""
        shapes = self._file[1]
        wrong = _Differences.between(shapes, module)
        if wrong and self.weights_missing == "refuse":
            raise SettingError(
                f"weights: {self.path.name} does not fit the model: {wrong.words}; "
                "weights_missing 'keep' keeps what does not fit as it is initialised"
            )
        own = module.state_dict()
        names = [n for n in shapes if n in own and n not in wrong.other_shape]
        if not names:
            raise SettingError(f"weights: {self.path.name} has nothing of the model: {wrong.words}")
        if not self._values:
            self._values.update(self._read(names))
        with torch.no_grad():
            for name in names:
                own[name].copy_(self._values[name])

    def _read(self, names: list[str]) -> State:
        try:
            with safe_open(self.path.resolve(), framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in names}
        except (OSError, SafetensorError) as error:
            raise SettingError(f"weights: cannot read {str(self.path)!r}: {error}") from None
        for name, t in tensors.items():
            if t.is_floating_point() and not bool(t.isfinite().all()):
                raise SettingError(
                    f"weights: {name!r} in {self.path.name} has values that are not finite"
                )
        return tensors


@dataclass(frozen=True)
class _Differences:
    """How what is in a file differs from what a module has."""

    missing: list[str]  # names of the module that the file lacks
    unexpected: list[str]  # names of the file that the module has not got
    other_shape: dict[str, str]  # name -> both shapes, in words

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.other_shape)

    @classmethod
    def between(cls, shapes: Shapes, module: nn.Module) -> _Differences:
        own = module.state_dict(keep_vars=True)
        # a tensor with two names (tied layers) is there if either is
        parameters = {id(own[n]) for n in shapes if n in own}
        return cls(
            [n for n, t in own.items() if id(t) not in parameters],
            [n for n in shapes if n not in own],
            {n: text for n, t in own.items() if n in shapes and (text := _other(shapes[n], t))},
        )

    @property
    def words(self) -> str:
        parts = [
            ("missing in the file", self.missing),
            ("not in the model", self.unexpected),
            ("of another shape", [f"{n} ({text})" for n, text in self.other_shape.items()]),
        ]
        words = [f"{what}: {_some(names)}" for what, names in parts if names]
        prefix = _prefix(self.missing, self.unexpected)
        if prefix:
            words.append(f"names would agree but for the beginning {prefix!r}")
        return "; ".join(words)


def _other(stored: tuple[tuple[int, ...], torch.dtype], own: Tensor) -> str:
    """Both forms in words, where a tensor of the file cannot be the module's."""
    shape, dtype = stored
    if shape != tuple(own.shape):
        return f"{list(shape)} in the file, {list(own.shape)} in the model"
    if dtype.is_floating_point != own.is_floating_point():
        return f"{_name(dtype)} in the file, {_name(own.dtype)} in the model"
    return ""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _prefix(missing: list[str], unexpected: list[str]) -> str:
    """The text that one side has before the other's names, if that is all that differs.

    >>> _prefix(["head.weight", "head.bias"], ["module.head.bias", "module.head.weight"])
    'module.'
    """
    for longer, shorter in ((missing, unexpected), (unexpected, missing)):
        for name in longer if shorter else ():
            prefix = name.removesuffix(shorter[0])
            if prefix != name and set(longer) >= {prefix + other for other in shorter}:
                return prefix
    return ""


def constants_digest(module: nn.Module) -> str:
    """SHA-256 of the parameters that are not trained; "" where all are."""
    digest = hashlib.sha256()
    values = constants(module)
    for name, t in values.items():
        flat = t.detach().cpu().contiguous().view(-1)
        digest.update(name.encode() + flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest() if values else ""


def constants(module: nn.Module) -> Mapping[str, Tensor]:
    """The parameters that are not trained, by name."""
    return {n: p.detach() for n, p in module.named_parameters() if not p.requires_grad}

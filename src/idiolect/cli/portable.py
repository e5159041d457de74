"""One client's model for other programs: ONNX, TorchScript or torch.export's pt2.

Each file is checked: it gives the outputs of the model that was trained. Beside it lies a JSON file
that says what goes in (the columns of a table and how they are prepared) and what comes out.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.documents import plain
from ..core.files import private_folder, write_atomic, write_json
from ..core.knobs import SettingError
from ..core.text import first_line
from ..report.console import say
from ..run.predict import preparation_of
from ..run.result import Result

Run = Callable[[Tensor], Tensor]  # a file's own way to compute
ROWS = 3  # of the sample that a model is traced with
CHECKED = 5  # rows of the sample that it is checked with: another number than it was traced with


def export_one(
    result: Result,
    client: Any,
    form: str,
    folder: Path,
    seed: int | None = None,
    *,
    best: bool = False,
) -> list[Path]:
    """The file of a client's model, and the file that describes it."""
    roster = result.models(seed, best).roster
    wire_id = roster.wire_id(client)
    module = result.personal(client, seed, best=best)
    about = {"client": roster.ids[wire_id], "method": result.label}
    return write_one(module, result.record.data, form, folder, f"client-{wire_id:06d}", about)


def write_one(
    module: nn.Module,
    data: dict[str, Any],
    form: str,
    folder: Path,
    name: str,
    about: dict[str, Any],
) -> list[Path]:
    """A model that was trained on such `data` (as a record tells them), and what describes it."""
    module = module.eval()
    make, suffix = FORMATS[form]
    sample = _sample(data, ROWS)
    with _quiet():
        content, run = make(module, sample)
    _check(module, run, _sample(data, CHECKED), form)
    target = private_folder(folder)
    paths = [target / f"{name}{suffix}", target / f"{name}.json"]
    write_atomic(paths[0], content)
    write_json(paths[1], plain(about | {"format": form} | _about(data, sample)))
    return paths


def _sample(data: dict[str, Any], rows: int) -> Tensor:
    """Inputs of the shape that the model was trained with."""
    inputs = data.get("inputs") or []
    if len(inputs) != 1:
        raise SettingError(
            "format: the inputs of this run are several tensors; only models of one can be written "
            "in this format. In Python: result.personal(client)"
        )
    kind, shape = inputs[0]
    if "float" in kind:
        return torch.from_numpy(np.random.default_rng(0).normal(size=(rows, *shape))).float()
    return torch.zeros(rows, *shape, dtype=torch.int64)


def _check(module: nn.Module, run: Run, sample: Tensor, form: str) -> None:
    """Refuse a file whose outputs are not those of the model."""
    with torch.no_grad():
        right = module(sample)
        try:
            outputs = run(sample)
        except Exception as error:  # whatever the format makes of the model
            reason = first_line(error)
            raise SettingError(f"format: as {form} this model does not run: {reason}") from None
    if outputs.shape != right.shape or not torch.allclose(outputs, right, rtol=1e-3, atol=1e-4):
        raise SettingError(f"format: as {form} this model gives other outputs; nothing was written")


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters warn of packages that are not needed and of their own future."""
    import logging

    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


# -- formats ---------------------------------------------------------------------------------------
def _onnx(module: nn.Module, sample: Tensor) -> tuple[bytes, Run]:
    try:
        import onnx
        import onnxscript  # noqa: F401
        from onnx.reference import ReferenceEvaluator
    except ImportError as error:
        raise SettingError(
            f"format: ONNX needs onnx and onnxscript ({error.name} is missing): "
            "pip install 'idiolect[export]'"
        ) from None
    shapes: Any = ({0: torch.export.Dim("rows")},)
    program = torch.onnx.export(
        module,
        (sample,),
        dynamo=True,
        dynamic_shapes=shapes,
        input_names=["inputs"],
        output_names=["outputs"],
        verbose=False,
    )
    assert program is not None
    model = program.model_proto
    onnx.checker.check_model(model)
    evaluator: Any = ReferenceEvaluator(model)

    def run(inputs: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(evaluator.run(None, {"inputs": inputs.numpy()})[0]))

    return model.SerializeToString(), run


def _torchscript(module: nn.Module, sample: Tensor) -> tuple[bytes, Run]:
    if not hasattr(torch.jit, "trace"):
        raise SettingError("format: this torch has no TorchScript any more; --format pt2 or onnx")
    say("TorchScript is deprecated by PyTorch, whose successor is torch.export: --format pt2")
    traced = torch.jit.trace(module, sample)
    written = io.BytesIO()
    torch.jit.save(traced, written)
    return written.getvalue(), traced


def _pt2(module: nn.Module, sample: Tensor) -> tuple[bytes, Run]:
    shapes = ({0: torch.export.Dim("rows")},)
    program = torch.export.export(module, (sample,), dynamic_shapes=shapes)
    written = io.BytesIO()
    torch.export.save(program, written)
    return written.getvalue(), program.module()


FORMATS: dict[str, tuple[Callable[[nn.Module, Tensor], tuple[bytes, Run]], str]] = {
    "onnx": (_onnx, ".onnx"),
    "torchscript": (_torchscript, ".pt"),
    "pt2": (_pt2, ".pt2"),
}


def _about(data: dict[str, Any], sample: Tensor) -> dict[str, Any]:
    """What goes in and what comes out."""
    preparation = preparation_of(data)
    classes = data.get("class_names") or list(range(int(data.get("classes") or 0)))
    return {
        "inputs": {"dtype": str(sample.dtype), "shape": ["rows", *sample.shape[1:]]},
        "features": list(preparation.feature_names) if preparation else None,
        "preparation": preparation.as_dict() if preparation else None,
        "outputs": "a number per class, of which softmax makes probabilities"
        if classes
        else "the value",
        "classes": classes or None,
    }

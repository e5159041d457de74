"""A personal adapter in peft's own format, for `PeftModel.from_pretrained(base, folder)`."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from ..core.files import private_folder
from ..core.knobs import SettingError

FILES = ("adapter_config.json", "adapter_model.safetensors")


def write_adapter(module: nn.Module, folder: Path) -> list[Path]:
    """The adapter of a module of peft, without the base; the files, those of FILES first.

    Of several adapters, peft puts those that are not called "default" into folders of their names.
    """
    try:
        from peft import PeftModel
    except ImportError:
        raise SettingError("export: peft is missing: pip install 'idiolect[language]'") from None
    if not isinstance(module, PeftModel):
        raise SettingError(
            "model must be a module of peft (get_peft_model) to be exported as its adapter, got "
            f"{type(module).__name__}; `export` writes any model as safetensors"
        )
    target = private_folder(folder)
    module.save_pretrained(str(target))
    paths = sorted(path for path in target.rglob("*") if path.name in FILES)
    return sorted(paths, key=lambda path: len(path.parts))

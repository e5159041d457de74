"""The engine 'flower' in a run of this process: it needs sites, and this says how to have them."""

from __future__ import annotations

import shlex
from typing import Any

from ..core.knobs import SettingError
from ..method import Method
from ..methods import METHODS, make_method, name_of
from .plan import Plan
from .settings import Settings

FLOWER = "flower"


def refuse_without_sites(method: Method, settings: Settings, plan: Plan | None = None) -> None:
    """Refuse the engine 'flower', whose clients are in no federation of this process."""
    if settings.engine == FLOWER:
        raise SettingError(
            "engine: 'flower' is not accepted here; it trains with real sites, which keep their "
            "data (docs/deploy.md). A folder for them, with this method and these settings: "
            f"{deploy_command(method, settings, plan)}"
        )


def deploy_command(method: Method, settings: Settings, plan: Plan | None = None) -> str:
    """`idiolect deploy init` with the same method and settings; FOLDER and the like are to be
    filled in.

    >>> deploy_command(make_method("ditto", lam=0.3), Settings(rounds=50))
    'idiolect deploy init FOLDER --sites N --like TABLE --target COLUMN --method ditto --lam 0.3 \
--rounds 50'
    """
    name = name_of(method)
    known = name in METHODS
    kind = type(method)
    words = ["--method", name if known else f"{kind.__module__}:{kind.__qualname__}"]
    by_default = make_method(name) if known else kind()
    words += _flags(method.as_dict(), by_default.as_dict())
    usual = Settings().as_dict()
    words += _flags({**settings.as_dict(), "engine": usual["engine"]}, usual)
    data = ["--like", "TABLE", "--target", "COLUMN"]
    if plan is not None:
        options = plan.data_options
        if plan.data == "table":
            data = ["--like", str(options.get("path") or "TABLE")]
            data += ["--target", str(options.get("target") or "target")]
        elif plan.data:
            data = ["--data", plan.data]
        named = {"model": plan.model, **plan.model_options, "loss": plan.loss}
        words += _flags({**named, **plan.task_options}, {"model": "", "loss": ""})
    return shlex.join(["idiolect", "deploy", "init", "FOLDER", "--sites", "N", *data, *words])


def _flags(values: dict[str, Any], by_default: dict[str, Any]) -> list[str]:
    """A flag for each value that is not the default."""
    found = []
    for name, value in values.items():
        if name not in by_default or value != by_default[name]:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            found += [f"--{name.replace('_', '-')}", text]
    return found

"""The keywords of `idiolect.run` for editors and type checkers, written from `Settings`.

`python -m benchmarks.typed_settings` writes src/idiolect/run/typed_settings.py; `--check` fails
where that file is not what would be written. A field that is parsed takes its text too, and what
its knob lists as `takes`.
"""

from __future__ import annotations

import sys
import types
from dataclasses import fields
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from idiolect.run.settings import SECTIONS

WIDTH = 100
TARGET = Path(__file__).parent.parent / "src/idiolect/run/typed_settings.py"
HEAD = '''"""The settings of a run as keywords that editors and type checkers know.

Written by `python -m benchmarks.typed_settings` from `Settings`, which owns them.
"""

from __future__ import annotations

{imports}


class RunSettings(TypedDict, total=False):
    """Keywords of `run` and `compare`; a field that holds an object takes its text too."""

{fields}
'''


def written() -> str:
    """The content of the file."""
    imports: dict[str, set[str]] = {"typing": {"TypedDict"}}
    lines = []
    for section in SECTIONS:
        hints = get_type_hints(section)
        for f in fields(section):
            kind: Any = hints[f.name]
            if "parse" in f.metadata:
                kind = Union[(kind, *f.metadata.get("takes", ()), str)]
            line = f"    {f.name}: {type_text(kind, imports)}"
            if len(line) > WIDTH:
                parts = [type_text(part, imports) for part in get_args(kind)]
                line = f"    {f.name}: (\n        " + "\n        | ".join(parts) + "\n    )"
            lines.append(line)
    return HEAD.format(imports=import_lines(imports), fields="\n".join(lines))


def type_text(kind: Any, imports: dict[str, set[str]]) -> str:
    """A type as it is written; what it needs is added to the imports."""
    if kind in (None, types.NoneType):
        return "None"
    if kind is ...:
        return "..."
    inner = [type_text(part, imports) for part in get_args(kind)]
    if get_origin(kind) in (Union, types.UnionType):
        return " | ".join(sorted(inner, key=lambda text: text == "None"))
    outer = get_origin(kind) or kind
    if outer.__module__ != "builtins":
        imports.setdefault(outer.__module__, set()).add(outer.__name__)
    return f"{outer.__name__}[{', '.join(inner)}]" if inner else outer.__name__


def import_lines(imports: dict[str, set[str]]) -> str:
    """Import statements, those of this package relative to run/."""
    standard, own = [], []
    for module, names in sorted(imports.items()):
        line = f"from {{}} import {', '.join(sorted(names))}"
        room = module.removeprefix("idiolect.")
        if room == module:
            standard.append(line.format(module))
        else:
            inside = room.startswith("run.")
            own.append(line.format(room.removeprefix("run") if inside else f"..{room}"))
    return "\n".join([*standard, "", *sorted(own, key=lambda text: "from .." not in text)])


if __name__ == "__main__":
    if sys.argv[1:] != ["--check"]:
        TARGET.write_text(written(), encoding="utf-8")
    elif TARGET.read_text(encoding="utf-8") != written():
        sys.exit(f"{TARGET} is not that of Settings: run python -m benchmarks.typed_settings")

"""How a source tree hangs together, in figures: `python -m benchmarks.structure [TREE ...]`.

Each TREE is a checkout of this project; without one, this checkout. The figures come from the
syntax trees of the files, nothing is imported. Layers are those of `[tool.importlinter]` in this
checkout's pyproject.toml. A tree from before the rooms is measured with the same layers: `OLD_HOME`
says which room the content of each of its modules has moved to.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
WIDTH = 100

OLD_HOME = {
    "admission": "wire",
    "aggregation": "server",
    "allocator": "core",
    "batches": "task",
    "channels.ragged": "wire",
    "checkpoint": "run",
    "cli": "cli",
    "compare": "run",
    "console": "report",
    "curves": "report",
    "data.cli": "cli",
    "engine.host": "host",
    "engine.store": "core",
    "evaluate": "host",
    "fields": "core",
    "flags": "cli",
    "info": "cli",
    "interrupts": "run",
    "kernels": "task",
    "ledger": "wire",
    "losses": "task",
    "measure": "run",
    "metrics": "host",
    "pipeline": "run",
    "plan": "run",
    "pooling": "task",
    "result": "run",
    "run": "run",
    "rundir": "run",
    "schedule": "run",
    "server_step": "server",
    "settings": "run",
    "specs": "core",
    "streams": "core",
    "tables": "report",
    "task": "task",
    "threads": "task",
    "wire": "wire",
}

# A name of the code -> the room that it belongs to: `host.data` outside of host/ reaches into it.
PARTS = {"engine": "engine", "host": "host", "server": "server"}


@dataclass(frozen=True)
class Import:
    source: str  # modules, without "idiolect."
    target: str


@dataclass(frozen=True)
class Use:
    module: str
    text: str  # "host.data"
    called: bool


class Tree:
    """The source files of a checkout."""

    def __init__(self, root: Path, layers: list[set[str]]):
        self.root = root
        self.package = root / "src" / "idiolect"
        self.layers = layers
        self.files = {self._module(p): p for p in sorted(self.package.rglob("*.py"))}
        self.old = not (self.package / "core").is_dir()

    def _module(self, path: Path) -> str:
        parts = path.relative_to(self.package).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def syntax(self) -> dict[str, ast.Module]:
        return {name: ast.parse(path.read_text()) for name, path in self.files.items()}

    def room(self, module: str) -> str:
        """The room of a module; "" for the package itself."""
        parts = module.split(".")
        if self.old:
            for n in (2, 1):
                if ".".join(parts[:n]) in OLD_HOME:
                    return OLD_HOME[".".join(parts[:n])]
        return parts[0]

    def level(self, module: str) -> int | None:
        """The number of a module's layer, from the top; None for the package itself."""
        room = self.room(module)
        return next((i for i, rooms in enumerate(self.layers) if room in rooms), None)

    # -- imports ---------------------------------------------------------------------------------
    def imports(self) -> set[Import]:
        """Every import of one module of the package by another."""
        return {
            Import(name, target)
            for name, tree in self.syntax.items()
            for target in self._targets(name, tree)
            if target != name
        }

    def _targets(self, name: str, tree: ast.Module) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
                yield from (n.removeprefix("idiolect.") for n in names if n.startswith("idiolect."))
            elif isinstance(node, ast.ImportFrom):
                base = self._base(name, node)
                if base is not None:
                    for alias in node.names:
                        inner = f"{base}.{alias.name}".strip(".")
                        yield inner if inner in self.files else base

    def _base(self, name: str, node: ast.ImportFrom) -> str | None:
        """The module that `from ... import` names; None outside the package."""
        named = node.module or ""
        if not node.level:
            inside = named == "idiolect" or named.startswith("idiolect.")
            return named.removeprefix("idiolect").strip(".") if inside else None
        parts = name.split(".") if name else []
        is_package = self.files[name].name == "__init__.py"
        up = node.level - 1 if is_package else node.level
        return ".".join([*parts[: len(parts) - up], *([named] if named else [])])

    def upwards(self) -> list[Import]:
        """Imports of a room above, or of another room on the same line."""
        found = []
        for each in self.imports():
            source = self.level(each.source)
            target = self.level(each.target)
            if source is None or target is None or self.room(each.source) == self.room(each.target):
                continue
            if target <= source:
                found.append(each)
        return sorted(found, key=lambda i: (i.source, i.target))

    # -- what reaches into other rooms ----------------------------------------------------------
    def uses(self) -> list[Use]:
        """`host.x`, `self.engine.x`, `server.x`, ... outside the room of host, engine, server."""
        found = []
        for name, tree in self.syntax.items():
            calls = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
            for node in ast.walk(tree):
                if not isinstance(node, ast.Attribute):
                    continue
                part = _last_name(node.value)
                if part in PARTS and PARTS[part] != self.room(name):
                    found.append(Use(name, f"{part}.{node.attr}", id(node) in calls))
        return found

    # -- sizes -----------------------------------------------------------------------------------
    def longest_file(self) -> tuple[int, str]:
        return max((len(p.read_text().splitlines()), name) for name, p in self.files.items())

    def longest_function(self) -> tuple[int, str]:
        """Lines of the longest function, signature and docstring included."""
        return max(
            (int(node.end_lineno or 0) - node.lineno + 1, f"{name}:{node.name}")
            for name, tree in self.syntax.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        )

    def public_names(self) -> int:
        """The names in `idiolect.__all__`."""
        for node in self.syntax[""].body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return len(ast.literal_eval(node.value))
        return 0

    def open_modules(self) -> int:
        """Modules that can be imported by a name without an underscore."""
        return sum(
            bool(name) and not any(part.startswith("_") for part in name.split("."))
            for name in self.files
        )

    def wide_lines(self) -> tuple[int, int]:
        """Lines over 100 columns, and all lines, of the Python files of the checkout."""
        folders = [self.root / name for name in ("src", "tests", "benchmarks", "examples")]
        paths = [p for folder in folders for p in folder.rglob("*.py")]
        lines = [line for p in paths for line in p.read_text().splitlines()]
        return sum(len(line) > WIDTH for line in lines), len(lines)


def _last_name(node: ast.expr) -> str:
    """The last name of `host`, `self.host` or `hosts[0].engine`; "" for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def read_layers(pyproject: Path = ROOT / "pyproject.toml") -> list[set[str]]:
    """The rooms of each layer, from the top."""
    contracts = tomllib.loads(pyproject.read_text())["tool"]["importlinter"]["contracts"]
    lines = next(c["layers"] for c in contracts if c["type"] == "layers")
    return [{room.strip() for room in line.split("|")} for line in lines]


def figures(tree: Tree) -> dict[str, str]:
    """The rows of the table."""
    upwards = tree.upwards()
    uses = tree.uses()
    by_part = Counter(u.text.split(".")[0] for u in uses)
    longest = tree.longest_file()
    function = tree.longest_function()
    wide, lines = tree.wide_lines()
    rows = {
        "modules": str(len(tree.files)),
        "modules that import upwards or sideways": str(len({i.source for i in upwards})),
        "such imports": str(len(upwards)),
        "attribute uses across rooms": f"{len(uses)} ({sum(u.called for u in uses)} are calls)",
    }
    for part in PARTS:
        rows[f"... of `{part}.` outside {part}/"] = str(by_part[part])
    return rows | {
        "longest file": f"{longest[0]} lines ({longest[1]})",
        "longest function": f"{function[0]} lines ({function[1]})",
        "names in `idiolect.__all__`": str(tree.public_names()),
        "modules without an underscore": str(tree.open_modules()),
        f"lines over {WIDTH} columns": f"{wide:,} of {lines:,} ({100 * wide / lines:.1f} %)",
    }


def table(trees: list[Tree]) -> str:
    """One column per tree, as Markdown."""
    columns = [figures(tree) for tree in trees]
    head = ["", *(str(tree.root) for tree in trees)]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(arguments: list[str]) -> None:
    layers = read_layers()
    roots = [Path(a) for a in arguments] or [ROOT]
    trees = [Tree(root, layers) for root in roots]
    print(table(trees))
    for tree in trees:
        print(f"\n{tree.root}: imports upwards or sideways, and uses by room")
        for each in tree.upwards():
            rooms = f"{tree.room(each.source)} -> {tree.room(each.target)}"
            print(f"  {each.source} imports {each.target} ({rooms})")
        by_room = Counter((tree.room(u.module), u.text.split(".")[0]) for u in tree.uses())
        for (room, part), count in by_room.most_common():
            print(f"  {count:4d} x {part}. in {room}/")


if __name__ == "__main__":
    main(sys.argv[1:])

"""How a source tree hangs together, in figures: `python -m benchmarks.structure [TREE ...]`.

Each TREE is a checkout of this project; without one, this checkout. Most figures come from the
syntax trees of the files. Three need the package to run: the modules that `import idiolect` loads,
and the functions on the way of `idiolect run fedavg` (`--static` leaves them out). Layers are those
of `[tool.importlinter]` in this checkout's pyproject.toml.
"""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
import tempfile
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
WIDTH = 100
PACKAGE = "idiolect"

# names of things must be nouns: these say what happened to a thing, not what it is
PARTICIPLES = (
    *("found", "known", "given", "kept", "chosen", "made", "said", "told", "heard", "asked"),
    *("taken", "left", "held", "seen", "spent", "sent", "put", "gone", "done"),
)
# A name of the code -> the room that it belongs to: `host.data` outside of host/ reaches into it.
PARTS = {"engine": "engine", "host": "host", "server": "server"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Import:
    source: str  # full names of modules
    target: str


@dataclass(frozen=True)
class Use:
    module: str
    text: str  # "host.data"
    called: bool


class Tree:
    """The source files of a checkout, by the full name of their module."""

    def __init__(self, root: Path, layers: list[set[str]]):
        self.root = root
        self.layers = layers
        self.files = {
            self._module(path): path
            for path in sorted((root / "src").rglob("*.py"))
            if path.relative_to(root / "src").parts[0].startswith(PACKAGE)
        }

    def _module(self, path: Path) -> str:
        parts = path.relative_to(self.root / "src").with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def texts(self) -> dict[str, str]:
        return {name: path.read_text() for name, path in self.files.items()}

    @cached_property
    def syntax(self) -> dict[str, ast.Module]:
        return {name: ast.parse(text) for name, text in self.texts.items()}

    def nodes(self) -> Iterator[tuple[str, ast.AST]]:
        for name, tree in self.syntax.items():
            for node in ast.walk(tree):
                yield name, node

    def room(self, module: str) -> str:
        """idiolect/server for idiolect.server.rules.rule; the package for a module at its top."""
        package, _, rest = module.partition(".")
        folder = rest.partition(".")[0]
        return f"{package}/{folder}" if f"{package}.{folder}" in self._packages else package

    @cached_property
    def _packages(self) -> set[str]:
        return {name for name, path in self.files.items() if path.name == "__init__.py"}

    def level(self, module: str) -> int | None:
        """The number of a module's layer, from the top; None for what has none."""
        package, _, rest = module.partition(".")
        room = rest.partition(".")[0]
        levels = (i for i, rooms in enumerate(self.layers) if room in rooms)
        return next(levels, None) if package == PACKAGE else None

    # -- imports ---------------------------------------------------------------------------------
    @cached_property
    def imports(self) -> set[Import]:
        """Every import of one module of the tree by another."""
        return {
            Import(name, target)
            for name, node in self.nodes()
            for target in self._targets(name, node)
            if target != name
        }

    def _targets(self, name: str, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in self.files)
        elif isinstance(node, ast.ImportFrom):
            base = self._base(name, node)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                if inner in self.files or base in self.files:
                    yield inner if inner in self.files else base

    def _base(self, name: str, node: ast.ImportFrom) -> str:
        """The module that `from ... import` names."""
        if not node.level:
            return node.module or ""
        parts = name.split(".")
        up = node.level - 1 if name in self._packages else node.level
        return ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])

    def upwards(self) -> list[Import]:
        """Imports of a room above, or of another room on the same line."""
        breaches = []
        for each in self.imports:
            source = self.level(each.source)
            target = self.level(each.target)
            if source is None or target is None or self.room(each.source) == self.room(each.target):
                continue
            if target <= source:
                breaches.append(each)
        return sorted(breaches, key=lambda i: (i.source, i.target))

    def importers(self) -> Counter[str]:
        """How many modules import each module."""
        return Counter(each.target for each in self.imports)

    # -- what reaches into other rooms ----------------------------------------------------------
    def uses(self) -> list[Use]:
        """`host.x`, `self.engine.x`, `server.x`, ... outside the room of host, engine, server."""
        uses = []
        for name, tree in self.syntax.items():
            calls = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
            for node in ast.walk(tree):
                if not isinstance(node, ast.Attribute):
                    continue
                part = _last_name(node.value)
                if part in PARTS and self.room(name) != f"{PACKAGE}/{PARTS[part]}":
                    uses.append(Use(name, f"{part}.{node.attr}", id(node) in calls))
        return uses

    # -- sizes -----------------------------------------------------------------------------------
    def code_lines(self) -> dict[str, int]:
        """Lines of each module without blank ones, comments and docstrings."""
        return {name: code_lines(text) for name, text in self.texts.items()}

    def by_room(self) -> dict[str, tuple[int, int]]:
        """Code lines and files of each room."""
        sizes: dict[str, list[int]] = defaultdict(list)
        for name, lines in self.code_lines().items():
            sizes[self.room(name)].append(lines)
        return {room: (sum(lines), len(lines)) for room, lines in sorted(sizes.items())}

    def functions(self) -> list[int]:
        """Lines of every function, signature and docstring included."""
        return [
            int(node.end_lineno or 0) - node.lineno + 1
            for _, node in self.nodes()
            if isinstance(node, FUNCTIONS)
        ]

    def longest_file(self) -> tuple[int, str]:
        return max((len(text.splitlines()), name) for name, text in self.texts.items())

    def longest_function(self) -> tuple[int, str]:
        return max(
            (int(node.end_lineno or 0) - node.lineno + 1, f"{name}:{node.name}")
            for name, node in self.nodes()
            if isinstance(node, FUNCTIONS)
        )

    def wide_lines(self) -> tuple[int, int]:
        """Lines over 100 columns, and all lines, of the Python files of the checkout."""
        folders = [self.root / name for name in ("src", "tests", "benchmarks", "examples")]
        paths = [p for folder in folders for p in folder.rglob("*.py")]
        lines = [line for p in paths for line in p.read_text().splitlines()]
        return sum(len(line) > WIDTH for line in lines), len(lines)

    # -- names -----------------------------------------------------------------------------------
    def doubled_classes(self) -> dict[str, list[str]]:
        """Public class names that stand for several classes of one package."""
        homes: dict[tuple[str, str], list[str]] = defaultdict(list)
        for name, node in self.nodes():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[name.partition(".")[0], node.name].append(name)
        return {cls: names for (_, cls), names in sorted(homes.items()) if len(names) > 1}

    def participles(self) -> Counter[str]:
        """Variables named by a bare participle, by how often they are assigned."""
        return Counter(
            node.id
            for _, node in self.nodes()
            if isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Store)
            and node.id in PARTICIPLES
        )

    def untyped(self) -> int:
        return sum(text.count("dict[str, Any]") for text in self.texts.values())

    def method_members(self) -> int:
        """What `idiolect.method.Method` declares and defines under a public name."""
        for node in self.syntax[f"{PACKAGE}.method"].body:
            if isinstance(node, ast.ClassDef) and node.name == "Method":
                names = {n.name for n in node.body if isinstance(n, FUNCTIONS)}
                names |= {ast.unparse(n.target) for n in node.body if isinstance(n, ast.AnnAssign)}
                return sum(not name.startswith("_") for name in names)
        return 0

    def public_names(self) -> int:
        """The names in `idiolect.__all__`."""
        stub = self.root / "src" / PACKAGE / "__init__.pyi"
        tree = ast.parse(stub.read_text()) if stub.exists() else self.syntax[PACKAGE]
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return len(ast.literal_eval(node.value))
        return 0


def code_lines(text: str) -> int:
    """Lines without blank ones, comments and docstrings."""
    no_code = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*no_code, tokenize.ENDMARKER):
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and node.body:
            first = node.body[0]
            if ast.get_docstring(node) is not None:
                lines -= set(range(first.lineno, int(first.end_lineno or 0) + 1))
    return len(lines)


def _last_name(node: ast.expr) -> str:
    """The last name of `host`, `self.host` or `hosts[0].engine`; "" for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


# -- figures of the package at work ----------------------------------------------------------------
LOADED = """
import sys, torch
before = set(sys.modules)
import idiolect
for name in idiolect.__all__:
    getattr(idiolect, name)
print(sum(name.partition(".")[0].startswith("idiolect") for name in set(sys.modules) - before))
"""

# the distinct functions of the project, and their files, before the first round, in the second
# round, and after the last one; all modules are imported before, so that no class body counts
WALK = """
import json, os, sys, tempfile
source = os.path.realpath(sys.argv[1]) + os.sep
phases = {"start-up": set(), "a round": set(), "the end": set()}
rounds = depth = 0
def look(frame, event, _):
    global rounds, depth
    code = frame.f_code
    if not code.co_filename.startswith(source):
        return
    if code.co_name == "advance" and os.sep + "engine" + os.sep in code.co_filename:
        if event == "call":
            rounds += not depth
            depth += 1
        elif event == "return":
            depth -= 1
    if event == "call" and not code.co_name.startswith("<"):
        phase = "start-up" if not rounds else "the end" if rounds == 3 and not depth else ""
        phase = phase or ("a round" if rounds == 2 and depth else "")
        if phase:
            phases[phase].add((code.co_filename, code.co_qualname))
import contextlib, importlib, pkgutil
import idiolect
from idiolect_command import main
for module in pkgutil.walk_packages(idiolect.__path__, "idiolect."):
    with contextlib.suppress(ImportError):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
with tempfile.TemporaryDirectory() as folder:
    words = "run fedavg --data synthetic --clients 12 --rounds 3 --json --directory"
    sys.argv = ["idiolect", *words.split(), folder + "/run"]
    sys.setprofile(look)
    try:
        main()
    finally:
        sys.setprofile(None)
print()
print(json.dumps({p: (len(c), len({f for f, _ in c})) for p, c in phases.items()}))
"""


def _last_line(code: str, tree: Tree, *arguments: str) -> str:
    source = str((tree.root / "src").resolve())
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code, source, *arguments],
            env={**os.environ, "PYTHONPATH": source},
            cwd=folder,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise SystemExit(f"{tree.root}: {done.stderr.strip()[-2000:]}")
    return done.stdout.strip().splitlines()[-1]


def working_figures(tree: Tree) -> dict[str, str]:
    rows = {"project modules behind `import idiolect`'s names": _last_line(LOADED, tree)}
    for phase, (functions, files) in json.loads(_last_line(WALK, tree)).items():
        rows[f"`idiolect run fedavg`, {phase}"] = f"{functions} functions in {files} files"
    return rows


def read_layers(pyproject: Path = ROOT / "pyproject.toml") -> list[set[str]]:
    """The rooms of each layer, from the top."""
    contracts = tomllib.loads(pyproject.read_text())["tool"]["importlinter"]["contracts"]
    lines = next(c["layers"] for c in contracts if c["type"] == "layers")
    return [{room.strip() for room in line.split("|")} for line in lines]


def figures(tree: Tree, static: bool = True) -> dict[str, str]:
    """The rows of the table."""
    rooms = tree.by_room()
    packages: dict[str, tuple[int, int]] = {}
    for room, (lines, files) in rooms.items():
        package = room.partition("/")[0]
        before = packages.get(package, (0, 0))
        packages[package] = (before[0] + lines, before[1] + files)
    rows = {name: _size(*size) for name, size in packages.items()}
    rows |= {f"... {room}": _size(*size) for room, size in rooms.items() if "/" in room}
    functions = tree.functions()
    uses = tree.uses()
    by_part = Counter(u.text.split(".")[0] for u in uses)
    importers = tree.importers()
    longest, function = tree.longest_file(), tree.longest_function()
    wide, lines = tree.wide_lines()
    rows |= {
        "functions": f"{len(functions):,}, {sum(functions) / len(functions):.1f} lines on average",
        "modules with exactly one importer": str(sum(n == 1 for n in importers.values())),
        "imports upwards or sideways": str(len(tree.upwards())),
        "attribute uses across rooms": f"{len(uses)} ({sum(u.called for u in uses)} are calls)",
    }
    rows |= {f"... of `{part}.` outside {part}/": str(by_part[part]) for part in PARTS}
    rows |= {
        "longest file": f"{longest[0]} lines ({longest[1]})",
        "longest function": f"{function[0]} lines ({function[1]})",
        "class names that occur twice": str(len(tree.doubled_classes())),
        "variables named by a participle": str(tree.participles().total()),
        "`dict[str, Any]`": str(tree.untyped()),
        "members of Method": str(tree.method_members()),
        "names in `idiolect.__all__`": str(tree.public_names()),
        f"lines over {WIDTH} columns": f"{wide:,} of {lines:,} ({100 * wide / lines:.1f} %)",
    }
    return rows if static else rows | working_figures(tree)


def _size(lines: int, files: int) -> str:
    return f"{lines:,} in {files}"


def table(trees: list[Tree], static: bool = True) -> str:
    """One column per tree, as Markdown."""
    columns = [figures(tree, static) for tree in trees]
    head = ["code lines in files", *(str(tree.root) for tree in trees)]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(column.get(name, "–") for column in columns)] for name in names]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(arguments: list[str]) -> None:
    static = "--static" in arguments
    layers = read_layers()
    roots = [Path(a) for a in arguments if a != "--static"] or [ROOT]
    trees = [Tree(root, layers) for root in roots]
    print(table(trees, static))
    for tree in trees:
        print(f"\n{tree.root}")
        for each in tree.upwards():
            print(f"  {each.source} imports {each.target}, upwards or sideways")
        for name, homes in tree.doubled_classes().items():
            print(f"  class {name}: {', '.join(homes)}")
        participles = ", ".join(f"{n} {w}" for w, n in tree.participles().most_common(12))
        print(f"  participles: {participles or 'none'}")


if __name__ == "__main__":
    main(sys.argv[1:])

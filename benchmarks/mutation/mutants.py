"""The mutants of a module: its functions with one operator, number or statement changed.

Only the bodies of functions are changed: what is computed when a module is imported (constants,
fields, defaults) is not. A change that leaves the bytecode as it is (in an annotation) is none.
"""

from __future__ import annotations

import ast
import difflib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

_SWAPPED = (  # one replacement for each: all eleven would say the same eleven times
    "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Div Mod_Mul Pow_Mul RShift_LShift LShift_RShift "
    "BitOr_BitAnd BitAnd_BitOr BitXor_BitAnd"
)
_COMPARED = "Eq_NotEq NotEq_Eq Lt_LtE LtE_Lt Gt_GtE GtE_Gt Lt_GtE GtE_Lt Is_IsNot IsNot_Is"
_SIGNED = "USub_UAdd Delete_Invert Delete_Not Delete_USub"
OPERATORS = (
    *(f"ReplaceBinaryOperator_{name}" for name in _SWAPPED.split()),
    *(f"ReplaceComparisonOperator_{name}" for name in _COMPARED.split()),
    *(f"ReplaceUnaryOperator_{name}" for name in _SIGNED.split()),
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ExceptionReplacer",
    "NumberReplacer",
    "ZeroIterationForLoop",
)


@dataclass(frozen=True)
class Mutant:
    """One function with one change."""

    operator: str
    line: int  # where the change is
    lines: tuple[int, int]  # of the statement around it: a test that runs none cannot notice
    function: str  # qualified name
    code: types.CodeType
    diff: str


@dataclass(frozen=True)
class Source:
    """A module as text."""

    text: str
    path: str

    def mutants(self) -> Iterator[Mutant]:
        """All of them, in the order of the operators and of the text."""
        original = codes(compile(self.text, self.path, "exec", dont_inherit=True))
        for name in OPERATORS:
            operator = get_operator(f"core/{name}")()
            nodes = ast_nodes(parso.parse(self.text))
            places = [where for node in nodes for where in operator.mutation_positions(node)]
            for occurrence, ((line, _), _) in enumerate(places):
                text = mutate_code(self.text, operator, occurrence)
                if text is None:
                    continue
                yield from self._changed(name, line, text, original)
        for line, text in self._removed():
            yield from self._changed("statement removed", line, text, original)

    def _removed(self) -> Iterator[tuple[int, str]]:
        """The text without one call, raise or assignment to something that outlives the function.

        Cosmic Ray has no such operator, and code that is there for its effect needs it.
        """
        lines = self.text.splitlines(keepends=True)
        for node in ast.walk(ast.parse(self.text)):
            call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
            targets = node.targets if isinstance(node, ast.Assign) else []
            stored = any(isinstance(t, (ast.Attribute, ast.Subscript)) for t in targets)
            if call or stored or isinstance(node, (ast.Raise, ast.AugAssign)):
                begin, end = node.lineno - 1, int(node.end_lineno or node.lineno)
                rest = lines[end - 1].encode()[node.end_col_offset or 0 :].decode()
                kept = lines[begin][: node.col_offset] + "pass" + rest
                yield node.lineno, "".join([*lines[:begin], kept, *lines[end:]])

    def _changed(
        self, operator: str, line: int, text: str, original: dict[str, types.CodeType]
    ) -> Iterator[Mutant]:
        try:
            now = codes(compile(text, self.path, "exec", dont_inherit=True))
        except SyntaxError:
            return
        changed = [name for name, code in now.items() if original.get(name) != code]
        if now.keys() == original.keys() and len(changed) == 1:
            (function,) = changed
            diff = difflib.unified_diff(self.text.splitlines(), text.splitlines(), n=0, lineterm="")
            body = "\n".join(row for row in diff if row[:3] not in ("---", "+++", "@@ "))
            lines = self._statement(line)
            yield Mutant(operator, line, lines, function, now[function], body)

    def _statement(self, line: int) -> tuple[int, int]:
        """First and last line of the innermost statement around a line; of a block, its head."""
        around = [(first, last) for first, last in self._statements if first <= line <= last]
        return max(around, default=(line, line))

    @cached_property
    def _statements(self) -> list[tuple[int, int]]:
        found = []
        for node in ast.walk(ast.parse(self.text)):
            if isinstance(node, ast.stmt):
                body = getattr(node, "body", None)
                inside = isinstance(body, list) and body
                last = max(node.lineno, body[0].lineno - 1) if inside else node.end_lineno
                found.append((node.lineno, int(last or node.lineno)))
        return found


def codes(code: types.CodeType) -> dict[str, types.CodeType]:
    """The code of the functions of a module and of its classes, by qualified name."""
    found = {}
    for part in code.co_consts:
        if isinstance(part, types.CodeType) and "<" not in part.co_qualname:
            found[part.co_qualname] = part
            if not part.co_flags & 2:  # a class's body, not a function's (CO_NEWLOCALS)
                found.pop(part.co_qualname)
                found |= codes(part)
    return found


def functions(module: types.ModuleType) -> dict[str, types.FunctionType]:
    """The functions of a module and of its classes, by qualified name."""
    found: dict[str, types.FunctionType] = {}

    def look(value: Any) -> None:
        for inner in ("__func__", "fget", "func", "__wrapped__"):  # methods, properties, decorators
            if not isinstance(value, type) and hasattr(value, inner):
                look(getattr(value, inner))
        if isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
            found.setdefault(value.__qualname__, value)
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for member in vars(value).values():
                look(member)

    for value in vars(module).values():
        look(value)
    return found

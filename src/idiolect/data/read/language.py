"""Text by user for language models: tokenised by the user's own tokenizer, as next-token samples.

A row has a user and a text, or a user, a prompt and a response. Texts of a user form one stream, in
their order, that is cut into windows; a prompt with its response is one sample, of which only the
response is predicted. A sample is `input_ids` and `attention_mask`, as models of transformers take
them, with the token after each position as its target, and -100 where nothing is to be predicted.

    rows                                               read from
    {"user": ..., "text": ...}, or prompt, response    a list, a data set of Hugging Face
    the same, one per line                             a file of JSON lines
    USER.txt, USER/*.txt                               a folder
    {user: text, or texts, or (prompt, response)}      a dict
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.files import given_path
from ...core.knobs import SettingError
from ...core.text import note, plural, shown
from .sequences import IGNORED

Tokenizer = Callable[..., Any]  # text -> token numbers, or a mapping with "input_ids"


class TextRow(NamedTuple):
    """What one user wrote; with a prompt, what they answered to it."""

    user: Any
    text: str
    prompt: str | None = None


class TokenWindow(NamedTuple):
    """Consecutive tokens, of which those from `first` on are predicted."""

    tokens: list[int]
    first: int = 1


@dataclass(frozen=True)
class TextColumns:
    """What the columns of rows are called."""

    user: str = "user"
    text: str = "text"
    prompt: str = "prompt"
    response: str = "response"

    def row(self, row: Any, where: str) -> TextRow:
        """A row of the user's as a `TextRow`."""
        cells = row if isinstance(row, Mapping) else {}
        is_answer = self.response in cells
        text = cells.get(self.response if is_answer else self.text)
        prompt = cells.get(self.prompt) if is_answer else None
        texts = (text, prompt) if is_answer else (text,)
        if self.user not in cells or not all(isinstance(t, str) for t in texts):
            raise SettingError(
                f"{where} must have {self.user!r} and {self.text!r}, or {self.user!r}, "
                f"{self.prompt!r} and {self.response!r}, as text, got {shown(row, 80)}"
            )
        return TextRow(cells[self.user], str(text), prompt)


def json_lines(path: Path) -> Iterator[Any]:
    """The values of a file of JSON lines."""
    with open(path, encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def read_rows(texts: Any, columns: TextColumns) -> list[TextRow]:
    """The rows of any source; see the table above."""
    if isinstance(texts, (str, os.PathLike)):
        path = given_path(os.fspath(texts), "texts")
        return _of_folder(path) if path.is_dir() else _of_file(path, columns)
    if isinstance(texts, Mapping):
        return [row for user, values in texts.items() for row in _of_user(user, values)]
    if not isinstance(texts, Iterable):
        raise SettingError(
            f"texts must be rows, a dict by user, a file or a folder, got {type(texts).__name__}"
        )
    return [columns.row(row, f"texts: row {i}") for i, row in enumerate(texts)]


def _of_file(path: Path, columns: TextColumns) -> list[TextRow]:
    if path.suffix not in (".jsonl", ".json", ".ndjson"):
        raise SettingError(f"texts must be a file of JSON lines or a folder, got {path.name!r}")
    try:
        rows = list(json_lines(path))
    except (OSError, UnicodeError, json.JSONDecodeError) as error:
        raise SettingError(f"texts: cannot read {str(path)!r}: {error}") from None
    return [columns.row(row, f"texts: line {i}") for i, row in enumerate(rows, start=1)]


def _of_folder(folder: Path) -> list[TextRow]:
    """`USER.txt`, and `USER/*.txt` in the order of their names."""
    paths = sorted([*folder.glob("*.txt"), *folder.glob("*/*.txt")])
    if not paths:
        raise SettingError(f"texts must be a folder of USER.txt or USER/*.txt, got {str(folder)!r}")
    try:
        texts = [path.read_text(encoding="utf-8") for path in paths]
    except (OSError, UnicodeError) as error:
        raise SettingError(f"texts: cannot read {str(folder)!r}: {error}") from None
    users = [path.stem if path.parent == folder else path.parent.name for path in paths]
    return [TextRow(user, text) for user, text in zip(users, texts, strict=True)]


def _of_user(user: Any, values: Any) -> Iterator[TextRow]:
    for value in [values] if isinstance(values, str) else values:
        if isinstance(value, str):
            yield TextRow(user, value)
        elif isinstance(value, tuple) and len(value) == 2 and all(map(_is_text, value)):
            yield TextRow(user, value[1], value[0])
        else:
            raise SettingError(
                f"texts of {shown(user, 60)!r} must be text or pairs (prompt, response), "
                f"got {shown(value, 80)}"
            )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


# -- tokens ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TokenCutter:
    """A tokenizer at work: texts to windows of at most `length` inputs."""

    tokenizer: Tokenizer
    length: int
    begin: int | None  # the token before every prompt
    end: int | None  # the token after every text and every response

    @classmethod
    def of(cls, tokenizer: Tokenizer, length: int, end: int | None) -> TokenCutter:
        """Of a tokenizer, with what it says of its own special tokens."""
        if not callable(tokenizer):
            raise SettingError(
                "tokenizer must be a function of a text that returns token numbers, or a tokenizer "
                f"of transformers, got {shown(tokenizer, 60)}"
            )
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise SettingError(f"length must be a whole number >= 1, got {length!r}")
        last = getattr(tokenizer, "eos_token_id", None) if end is None else end
        return cls(tokenizer, length, getattr(tokenizer, "bos_token_id", None), last)

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text alone, without special ones."""
        is_hub = hasattr(self.tokenizer, "add_special_tokens")  # of transformers
        out = self.tokenizer(text, add_special_tokens=False) if is_hub else self.tokenizer(text)
        numbers: Any = out["input_ids"] if isinstance(out, Mapping) else getattr(out, "ids", out)
        try:
            return [int(number) for number in numbers]
        except (TypeError, ValueError):
            raise SettingError(
                f"tokenizer must return token numbers, got {shown(numbers, 80)}"
            ) from None

    def windows(self, texts: Iterable[str]) -> list[TokenWindow]:
        """The stream of a user's texts, cut into windows; the last token of one begins the next."""
        stream = [token for text in texts for token in self.tokens(text) + self._ending]
        starts = range(0, len(stream) - 1, self.length)
        return [TokenWindow(stream[i : i + self.length + 1]) for i in starts]

    def answer(self, prompt: str, response: str) -> TokenWindow | None:
        """A prompt and its response; None where the prompt alone fills the window."""
        beginning = [] if self.begin is None else [self.begin]
        question = beginning + self.tokens(prompt)
        window = (question + self.tokens(response) + self._ending)[: self.length + 1]
        first = max(1, len(question))
        return TokenWindow(window, first) if len(window) > first else None

    @property
    def _ending(self) -> list[int]:
        return [] if self.end is None else [self.end]


def read_texts(
    texts: Any,
    tokenizer: Tokenizer,
    columns: TextColumns,
    length: int,
    end: int | None,
    vocabulary: int,
    options: dict[str, Any],
) -> dict[str, Any]:
    """The arguments of `Federation.from_arrays`."""
    cutter = TokenCutter.of(tokenizer, length, end)
    samples, long_prompts = _samples(read_rows(texts, columns), cutter)
    if long_prompts:
        note(f"texts: {plural(long_prompts, 'prompt')} of {length} tokens or more left out")
    if not samples:
        raise SettingError("texts must have at least two tokens, got none")
    rows = [torch.tensor(window.tokens, dtype=torch.int64) for _, window in samples]
    largest = max(int(row.max()) for row in rows)
    classes = vocabulary or max(_size(tokenizer), largest + 1)
    if largest >= classes or any(int(row.min()) < 0 for row in rows):
        raise SettingError(
            f"vocabulary must be above every token number, got {classes} and token {largest}"
        )
    if not {"split", "group", "time"} & options.keys():
        options = options | {"time": range(len(rows))}  # a user's last texts test
    return {
        "inputs": {
            "input_ids": [row[:-1] for row in rows],
            "attention_mask": [torch.ones_like(row[:-1]) for row in rows],
        },
        "targets": [
            _targets(row, window.first) for row, (_, window) in zip(rows, samples, strict=True)
        ],
        "clients": [user for user, _ in samples],
        "classes": classes,
        "name": "texts",
        **options,
    }


def _samples(rows: list[TextRow], cutter: TokenCutter) -> tuple[list[tuple[Any, TokenWindow]], int]:
    """(user, window) of every sample, and how many prompts were too long for one."""
    samples: list[tuple[Any, TokenWindow]] = []
    plain: dict[Any, list[str]] = {}
    long_prompts = 0
    for row in rows:
        if row.prompt is None:
            plain.setdefault(row.user, []).append(row.text)
            continue
        window = cutter.answer(row.prompt, row.text)
        long_prompts += window is None
        samples += [] if window is None else [(row.user, window)]
    samples += [(user, window) for user, own in plain.items() for window in cutter.windows(own)]
    return samples, long_prompts


def _targets(row: Tensor, first: int) -> Tensor:
    """The token after each position; -100 before those that are predicted."""
    targets = row[1:].clone()
    targets[: first - 1] = IGNORED
    return targets


def _size(tokenizer: Tokenizer) -> int:
    """How many tokens a tokenizer has; 0 where it does not say."""
    try:
        return len(tokenizer)  # type: ignore[arg-type]
    except TypeError:
        return 0

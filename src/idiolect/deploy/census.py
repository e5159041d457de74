"""What a site says of itself before it takes part: read as something that anybody may have sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.files import check_object
from ..core.types import Id
from ..data.federation import Census
from ..data.splits import SPLITS
from ..host.calls import Call

MOST_CLIENTS = 1 << 20  # of a site
MOST_SAMPLES = 1 << 40  # of a client
MOST_NAME = 200  # characters of an id or of the name of a site
KINDS = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.int64)}

Form = tuple[str, tuple[int, ...], int]  # of one sample: dtype, shape; and the number of classes


@dataclass
class Site:
    """A site that has agreed: its clients, where it is, and since when it takes part."""

    name: str
    node: int  # where the carrier finds it
    ids: list[Id]  # of its clients
    sizes: dict[str, list[int]]  # split -> samples of each client
    form: Form
    joined: int = 0  # the version of the first round that its clients could take part in
    wire_ids: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    here: bool = True  # whether it is asked

    def same(self, other: Site) -> bool:
        """Whether these are the same clients with as many samples."""
        mine, theirs = (self.ids, self.sizes, self.form), (other.ids, other.sizes, other.form)
        return self.name == other.name and mine == theirs

    def census(self) -> Census:
        return census_of([self])

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for a run directory."""
        kind, shape, classes = self.form
        rows = [
            {"id": id, **{s: self.sizes[s][k] for s in SPLITS}} for k, id in enumerate(self.ids)
        ]
        return {
            "site": self.name,
            "node": str(self.node),  # 64 bits, which JSON's numbers do not have everywhere
            "joined": self.joined,
            "wire_ids": self.wire_ids.tolist(),
            "clients": rows,
            "inputs": [[kind, list(shape)]],
            "classes": classes,
        }

    @classmethod
    def from_dict(cls, saved: Any) -> Site:
        """The inverse; ValueError for anything else."""
        facts = dict(check_object(saved))
        kinds = {"site": str, "node": str, "joined": int, "wire_ids": list[int]}
        mine = check_object({k: facts.pop(k, None) for k in kinds}, kinds)
        made = read_census(Call("census", facts), mine["site"], int(mine["node"]))
        made.joined = mine["joined"]
        made.wire_ids = torch.tensor(mine["wire_ids"], dtype=torch.int64)
        if len(made.wire_ids) != len(made.ids) or bool((made.wire_ids.diff() <= 0).any()):
            raise ValueError(f"{made.name}: a wire id per client, increasing")
        return made


def read_census(call: Call, name: str, node: int) -> Site:
    """A site's answer to what the federation is about; ValueError for anything else."""
    call.expect("census", {}, {"clients": list, "inputs": list, "classes": int})
    rows = call.facts["clients"]
    if not 1 <= len(rows) <= MOST_CLIENTS:
        raise ValueError(f"census: from 1 to {MOST_CLIENTS} clients are expected, not {len(rows)}")
    ids: list[Id] = []
    sizes: dict[str, list[int]] = {split: [] for split in SPLITS}
    for row in rows:
        check_object(row, {"id": str | int, **dict.fromkeys(SPLITS, int)})
        if len(str(row["id"])) > MOST_NAME or any(
            not 0 <= row[split] <= MOST_SAMPLES for split in SPLITS
        ):
            raise ValueError("census: ids are short, and samples whole numbers >= 0")
        ids.append(row["id"])
        for split in SPLITS:
            sizes[split].append(row[split])
    if len({str(id) for id in ids}) < len(ids):
        raise ValueError("census: two clients have the same id")
    return Site(name, node, ids, sizes, _form(call.facts["inputs"], call.facts["classes"]))


def _form(inputs: list[Any], classes: int) -> Form:
    try:
        ((kind, shape),) = inputs
    except (TypeError, ValueError):
        raise ValueError("census: 'inputs' is [[dtype, shape]]") from None
    whole = isinstance(shape, list) and all(type(n) is int and 0 < n <= 1 << 30 for n in shape)
    if kind not in KINDS or not whole or not 0 <= classes <= 1 << 24:
        raise ValueError("census: 'inputs' is [[dtype, shape]], 'classes' a whole number >= 0")
    return kind, tuple(shape), classes


def census_of(sites: list[Site], name: str = "sites") -> Census:
    """All clients of sites that have samples of the same form, in their order."""
    kind, shape, classes = sites[0].form
    ids = [id for site in sites for id in site.ids]
    sizes = {split: [n for site in sites for n in site.sizes[split]] for split in SPLITS}
    return Census.of_sizes(ids, sizes, classes, shape, KINDS[kind], name)

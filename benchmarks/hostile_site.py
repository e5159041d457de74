"""A site that sends NaN: `idiolect host start`, whose messages of rounds are spoiled as they leave.

python -m benchmarks.hostile_site host start --data ... --state DIR --site NAME
"""

from __future__ import annotations

import sys

import torch

from idiolect.cli.main import main
from idiolect.deploy.site.site import Site
from idiolect.host.calls import Call

NAN = torch.tensor([0, 0, 192, 127], dtype=torch.uint8)  # as float32, little-endian


def spoiled(reply: bytes) -> bytes:
    """The last number of every message of a round becomes NaN; other replies stay as they are."""
    call = Call.open(reply)
    if call.kind != "sent":
        return reply
    matrix = call.tensors["matrix"].clone()
    matrix[:, -len(NAN) :] = NAN
    return Call(call.kind, call.facts, {**call.tensors, "matrix": matrix}).pack()


class Hostile(Site):
    """A site whose owner does not keep to the rules."""

    def handle(self, frame: bytes) -> bytes:
        return spoiled(super().handle(frame))


if __name__ == "__main__":
    from idiolect.deploy.site import process

    vars(process)["Site"] = Hostile
    sys.exit(main(sys.argv[1:]))

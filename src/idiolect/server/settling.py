"""Who counts in a round, and what the server becomes by them.

A message may be sound by itself and not count all the same: because its client failed in a second
exchange, because too few others were heard, or because the server would overflow by it.
"""

from __future__ import annotations

from bisect import bisect_left

import torch
from torch import Tensor

from ..wire.admission import Admitted
from ..wire.messages import magnitudes
from .aggregation import Aggregation, Overflow
from .round import Outcome, Round
from .rules import TooFew

SAME_KIND = 1e-3  # a message this much smaller than one that overflows is of another kind


def candidates(round: Round) -> Admitted:
    """The messages that may count: those of the clients that took part in every exchange."""
    got = round.inbox.admitted()
    if not round.asked:
        return got
    gone = torch.cat([got.wire_ids[:0], *round.dropped.values()])
    got = got.only(~torch.isin(got.wire_ids, gone))
    second = round.second
    if second is None:  # too few were left to ask
        return got
    late = ~torch.isin(got.wire_ids, second.got.wire_ids)
    round.drop(got.wire_ids[late], "late")
    silent = second.unanswered()
    round.drop(second.got.wire_ids[silent], "answer")
    if bool(silent.any()):  # closed before the others were asked again
        round.drop(second.got.wire_ids[~silent], "unsettled")
        return got.only(torch.zeros_like(late))
    return got.only(~late)


def settle(
    aggregation: Aggregation, round: Round, got: Admitted, quorum: int
) -> tuple[Outcome | None, Admitted]:
    """The server after the round and those who count; None where it stays as it is."""
    nobody = got.only(torch.zeros(len(got.wire_ids), dtype=torch.bool))
    unasked = round.asked and round.second is None
    while len(got.wire_ids) >= max(quorum, 1) and not unasked:
        try:
            outcome = round.second.outcome if round.second else None
            return outcome or aggregation(round, got), got
        except TooFew:
            break
        except Overflow:
            failed = torch.ones(len(got.wire_ids), dtype=torch.bool)
            if round.stream is None:  # else who it was cannot be told from a sum
                failed = overflowing(aggregation, round, got)
            round.drop(got.wire_ids[failed], "overflow")
            if round.second is not None:  # what was asked for was shaped by them too
                round.drop(got.wire_ids[~failed], "unsettled")
                return None, nobody
            got = got.only(~failed)
    round.drop(got.wire_ids, "too few")
    return None, nobody


def overflowing(aggregation: Aggregation, round: Round, got: Admitted) -> Tensor:  # -> bool[S]
    """Whose messages make the server overflow.

    As few as possible, the largest first; and those of the same kind, within a factor of 1,000 of
    the smallest of them.
    """
    sizes = magnitudes(got.up)
    if round.second is not None:
        sizes = sizes.maximum(round.second.magnitudes(got.wire_ids))
    order = sizes.argsort(descending=True, stable=True)

    def fits(dropped: int) -> bool:
        kept = torch.ones(len(order), dtype=torch.bool)
        kept[order[:dropped]] = False
        try:
            aggregation(round, got.only(kept))
        except Overflow:
            return False
        except TooFew:
            pass
        return True

    # the first number that fits; without anybody nothing overflows
    dropped = bisect_left(range(1, len(order)), True, key=fits) + 1
    return sizes >= SAME_KIND * sizes[order[dropped - 1]]

"""What a secure sum costs beside the messages: bytes of each client, by stage.

The sizes are those of the stages themselves (`stages.stage_bytes`), so a simulation counts what
sites would send.
"""

from __future__ import annotations

from .graph import SharePlan
from .primitives import KEY_SHARE
from .stages import KEYS, MASKED, NAMES, OPENED, SHARES, stage_bytes

STAGES = (KEYS, SHARES, MASKED, OPENED)


def protocol_bytes(plan: SharePlan, opened: bool = True) -> tuple[int, int]:
    """(up, down) of one client; of one whose message has not counted the last stage is missing.

    >>> from idiolect.privacy.sums.graph import share_plan
    >>> protocol_bytes(share_plan(10, 7)), protocol_bytes(share_plan(100, 90))
    ((2240, 2887), (4238, 5551))
    """
    counted = [stage_bytes(stage, plan.shares - 1) for stage in (STAGES if opened else STAGES[:3])]
    return sum(up for _, up in counted), sum(down for down, _ in counted)


def most_bytes(plan: SharePlan) -> int:
    """The most bytes that one client is sent, or sends, in one stage.

    >>> from idiolect.privacy.sums.graph import share_plan
    >>> most_bytes(share_plan(10, 7))
    2410
    """
    others = plan.shares - 1
    sizes = [max(stage_bytes(stage, others)) for stage in STAGES]
    return max(sizes) + (others + 1) * KEY_SHARE


def by_stage(plan: SharePlan) -> dict[str, tuple[int, int]]:
    """(up, down) of one client in each stage."""
    sizes = {stage: stage_bytes(stage, plan.shares - 1) for stage in STAGES}
    return {NAMES[stage]: (up, down) for stage, (down, up) in sizes.items()}

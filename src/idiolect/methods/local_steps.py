"""Options of local SGD from the paper of Chen, Zheng, Long and Su (2021), Algorithm 3.

Steps that fall within a round, η_k = lr / (k + 1), and the projection P_W onto the compact domain W
of its Assumption A, here a ball around 0.
"""

from __future__ import annotations

from typing import Any

from ..core.knobs import SettingError, knob
from ..solvers import STEP_RULES


def step_rule_knob() -> Any:
    """The field `step_rule`."""
    return knob(
        "constant",
        "within a round, local step k = 0, 1, ... has size lr, or lr / (k + 1) (inverse; Theorem "
        "4.4 of Chen et al. with lr = 1/(μ + λ))",
        choices=STEP_RULES,
    )


def ball_knob() -> Any:
    """The field `ball`."""
    return knob(
        0.0, "after each local step, models are projected onto ||x|| <= ball; 0 = R^d", low=0
    )


def plain_steps_only(step_rule: str, ball: float) -> None:
    """Refuse these options together with an optimiser of the run: it has steps of its own."""
    for name, value, default in (("step_rule", step_rule, "constant"), ("ball", ball, 0.0)):
        if value != default:
            raise SettingError(
                f"{name}: {value!r} is not accepted with an optimizer or lr_scale of the run; it "
                f"belongs to plain SGD ({name} {default!r} goes with any optimizer)"
            )

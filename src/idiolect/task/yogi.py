"""Yogi, which torch does not have: Adam whose second moment grows and falls by additions.

Zaheer, Reddi, Sachan, Kale and Kumar 2018, Algorithm 2, without bias correction, as FedYogi has it
(Reddi et al. 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Yogi(torch.optim.Optimizer):
    """m <- β1 m + (1 - β1) g; v <- v - (1 - β2) sign(v - g²) g²; x <- x - lr m / (√v + eps).

    >>> x = torch.zeros(1, requires_grad=True)
    >>> x.grad = torch.ones(1)
    >>> Yogi([x], lr=0.1, betas=(0.0, 0.0), eps=0.0).step()
    >>> round(x.item(), 6)
    -0.1
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-3,
        initial_accumulator_value: float = 1e-6,  # v before the first step: τ² of FedYogi
    ):
        beta1, beta2 = betas
        if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
            raise ValueError(f"betas must be two numbers in [0, 1), got {betas}")
        if eps < 0 or initial_accumulator_value < 0:
            raise ValueError("eps and initial_accumulator_value must be numbers >= 0")
        options = {"lr": lr, "betas": betas, "eps": eps, "start": initial_accumulator_value}
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for x in group["params"]:
                if x.grad is None:
                    continue
                state = self.state[x]
                if not state:
                    state["exp_avg"] = torch.zeros_like(x)
                    state["exp_avg_sq"] = torch.full_like(x, group["start"])
                m, v = state["exp_avg"], state["exp_avg_sq"]
                square = x.grad.square()
                m.lerp_(x.grad, 1 - beta1)
                v.addcmul_((v - square).sign(), square, value=beta2 - 1)
                x.addcdiv_(m, v.sqrt().add_(group["eps"]), value=-group["lr"])

"""FedPer: a shared body under a head of each client's own.

Arivazhagan, Aggarwal, Singh and Choudhary 2019, Algorithms 1 and 2. Choose it as the plainest
partial personalisation: labels mean something else at every client, and one learning rate is
enough. It is FedSim with the same step size for both parts. Costs per round: the shared part each
way for each sampled client; `steps` gradients. Keeps: the private part.

With `part="norms"` and the run's `statistics="private"` it is FedBN (Li, Jiang, Zhang, Kamp and Dou
2021), for clients whose inputs differ: the name `fedbn`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.knobs import knob
from ..task.layout import Split
from ..task.task import Task
from .options import steps_knob
from .partial import JointSgd, part_knob


@dataclass(frozen=True)
class FedPer(JointSgd):
    """Shared body, private head, trained as one model. The plainest partial personalisation."""

    traits = JointSgd.traits

    # Algorithm 1 (client): SGD on (W_B, W_P); Algorithm 2 (server): W_B <- Σ n_k / n W_B,k
    lr: float = knob(0.3, "η, step size of both parts", above=0)
    steps: int = steps_knob(20, "SGD steps per round")
    part: str = part_knob("head", "the private part (K_P of the paper: the last layers)")

    def split(self, task: Task) -> Split:
        return task.split(self.part)

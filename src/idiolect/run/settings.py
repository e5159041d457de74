"""A run as one frozen object: flags, TOML file, report header and the resume check are the same thing."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .. import adversary, channels
from ..core.knobs import Knobs, SettingError, knob
from ..server import rules as aggregation
from ..server.step import ServerStep
from ..task.batches import BATCHING
from ..task.kernels import KERNELS
from .schedule import factor

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Settings(Knobs):
    """Everything about a run but its method, model and data."""

    rounds: int = knob(200, "communication rounds", low=0)
    sample: int = knob(0, "S, clients heard a round; 0 = a tenth of them", low=0)
    seeds: int = knob(1, "runs with seeds seed, seed + 1, ...", low=1)
    seed: int = knob(
        0, "the first seed: initialisation, sampling, batches, P", low=0, high=2**63 - 1
    )
    batch: int = knob(64, "mini-batch size", low=1)
    batching: str = knob(
        "replace",
        "mini-batches with replacement, without (epochs), or all data (full)",
        choices=BATCHING,
    )
    rule: str = knob(
        "mean",
        "the server's aggregation rule, e.g. 'median', 'krum(f=2)', 'bucketing(size=2) + trimmed-mean(f=1)'",
    )
    channel: str = knob(
        "none",
        "how messages up are coded, e.g. 'qsgd(levels=16)', 'feedback + topk(share=0.01) + half'; see: channels",
    )
    attack: str = knob(
        "none",
        "what malicious clients do, e.g. 'sign-flip', 'same-value(std=100)', 'data-poison'; see: attacks",
    )
    malicious: float = knob(
        0.0, "malicious clients: below 1 their share, from 1 on their number", low=0
    )
    server_optimizer: str = knob(
        "sgd", "server step on the aggregated change: any torch.optim name"
    )
    server_lr: float = knob(1.0, "server step size", above=0)
    server_options: str = knob(
        "", "its options, e.g. 'momentum=0.9' or 'betas=(0.9, 0.99), eps=1e-3'"
    )
    schedule: str = knob(
        "constant",
        "learning rates over rounds: constant, cosine, linear, step:EVERY:FACTOR, inverse:RATE, exp:FACTOR",
    )
    clip: float = knob(0.0, "largest norm of a local gradient; 0 = no clipping", low=0)
    weight_decay: float = knob(0.0, "L2 weight added to local gradients", low=0)
    eval_every: int = knob(1, "rounds between evaluations; 0 = at the end only", low=0)
    finetune_steps: int = knob(
        0,
        "SGD steps on every personal model before it is used or evaluated, whatever the method",
        low=0,
    )
    finetune_lr: float = knob(0.1, "step size of those", above=0)
    held_out: int = knob(
        0, "clients kept out of training, personalised and evaluated at the end", low=0
    )
    held_out_rounds: int = knob(10, "rounds of personalisation that held-out clients get", low=0)
    bytes: int = knob(
        0,
        "stop before more bytes than this are sent, both directions together; 0 = no budget",
        low=0,
    )
    target_accuracy: float = knob(
        0.0, "stop when the pooled test accuracy reaches this; 0 = no target", low=0, high=1
    )
    device: str = knob("cpu", "cpu, cuda, cuda:1, mps, ...")
    dtype: str = knob("float32", "numbers of models and messages", choices=tuple(DTYPES))
    kernel: str = knob("auto", "how the cohort gradient is computed", choices=KERNELS)
    threads: int = knob(0, "CPU threads; 0 = torch's choice", low=0)
    chunk: int = knob(0, "clients at once; 0 = as many as fit in memory", low=0)
    memory: float = knob(
        2.0, "GiB for a chunk at work, and for private rows before they move to a file", above=0
    )
    checkpoint_every: int = knob(
        0, "rounds between checkpoints; 0 = only when interrupted and at the end", low=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        aggregation.parse_rule(self.rule)
        channels.parse_channel(self.channel)
        attack = adversary.parse_attack(self.attack)
        if bool(attack) != bool(self.malicious):
            missing = (
                "attack: 'none' is not accepted with malicious"
                if self.malicious
                else "malicious: 0 is not accepted with an attack"
            )
            raise SettingError(
                f"{missing}; who lies and what they do go together, e.g. attack 'sign-flip' and malicious 0.2"
            )
        ServerStep(self.server_optimizer, self.server_lr, self.server_options)
        factor(self.schedule, 0, max(self.rounds, 1))
        check_device(self.device)
        if self.target_accuracy and not self.eval_every:
            raise SettingError(
                "eval_every: 0 is not accepted with a target_accuracy; a whole number >= 1, so that the target can be seen"
            )

    def sampled(self, eligible: int, hears_all: bool = False) -> int:
        """S for this many clients; all of them for a method that needs that."""
        if self.sample > eligible:
            raise SettingError(
                f"sample: {self.sample} is not accepted; at most the {eligible} clients that can take part"
            )
        if hears_all and self.sample not in (0, eligible):
            raise SettingError(
                f"sample: {self.sample} is not accepted for this method; it must hear all {eligible} clients (0)"
            )
        return eligible if hears_all else self.sample or max(1, round(0.1 * eligible))


def check_device(device: str) -> None:
    try:
        if torch.empty(1, device=device).device.type == "meta":
            raise RuntimeError("it holds no numbers")
    except (RuntimeError, AssertionError) as error:
        raise SettingError(
            f"device: {device!r} is not available here ({str(error).splitlines()[0]}); 'cpu' always is"
        ) from None

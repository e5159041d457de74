"""The settings of a run as keywords that editors and type checkers know.

Written by `python -m benchmarks.typed_settings` from `Settings`, which owns them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from ..attacks.attack import Attack
from ..channels.channel import Channel
from ..channels.stage import Stage
from ..engine.delays import Delays
from ..host.metrics.metric import Metric
from ..privacy.protection import Protection
from ..privacy.sums.setting import SecureSums
from ..server.asynchronous import Staleness
from ..server.rules.rule import Rule
from ..server.selection import ClientSelection
from ..task.augment import Augmentation, Change
from .client_weights import ClientWeights
from .data_seeds import DataSeeds
from .schedule import Schedule


class RunSettings(TypedDict, total=False):
    """Keywords of `run` and `compare`; a field that holds an object takes its text too."""

    rounds: int
    seeds: int
    seed: int
    data_seeds: DataSeeds | int | Sequence[int] | str
    bytes: int
    checkpoint_every: int
    checkpoint_minutes: float
    sample: int
    selection: ClientSelection | str
    quorum: int
    held_out: int
    held_out_rounds: int
    client_weights: ClientWeights | Mapping[Any, float] | str
    batch: int
    batching: str
    augment: Augmentation | Change | str
    schedule: Schedule | str
    optimizer: str
    optimizer_options: str
    optimizer_state: str
    lr_scale: str
    standardise_targets: bool
    clip: float
    weight_decay: float
    server_optimizer: str
    server_lr: float
    server_options: str
    finetune_steps: int
    finetune_lr: float
    statistics: str
    channel: Channel | Stage | str
    rule: Rule | str
    secure_sums: SecureSums | bool | str | None
    engine: str
    timing: str
    delays: Delays | str | None
    concurrency: int
    next_client: str
    staleness: Staleness | str
    buffer: int
    change_from: str
    address: str
    cpus_per_host: float
    gpus_per_host: float
    deadline: float
    patience_for_hosts: float
    attack: Attack | str | None
    malicious: float
    privacy: Protection | str | None
    epsilon: float
    delta: float
    noise_source: str
    eval_every: int
    eval_train: bool
    metrics: (
        tuple[Metric, ...]
        | Metric
        | Callable[..., Any]
        | str
        | Sequence[Metric | Callable[..., Any] | str]
    )
    metric: str
    positive: str | bool | int | float
    target_value: float | str | None
    patience: int
    patience_metric: str
    keep_best: bool
    device: str
    dtype: str
    kernel: str
    hosts: int
    threads: int
    chunk: int
    memory: float

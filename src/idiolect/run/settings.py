"""The settings of a run, by what they are about: one frozen dataclass for each part.

Every setting has one owner: a field of one of these. Texts (channel, rule, attack, schedule) are
parsed once, into the objects that the fields hold.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch

from ..attacks import ATTACKS, Attack, how_many
from ..channels import CHANNELS, Channel, Stage
from ..core.knobs import Knobs, OtherThan, SettingError, knob
from ..engine.arrivals import NEXT
from ..engine.carriers import ENGINES, EngineTraits, Place
from ..engine.delays import DELAYS, Delays
from ..host.metrics import (
    METRICS,
    Metric,
    direction,
    metrics_text,
    parse_metrics,
    parse_positive,
)
from ..methods.batchnorm import CHOICES as STATISTICS
from ..privacy.noise import SOURCES
from ..privacy.protection import PROTECTIONS, Central, Protection
from ..privacy.sums.setting import SecureSums, parse_sums, sums_text
from ..server.asynchronous import SINCE, STALENESS, Constant, Staleness
from ..server.rules import RULES, Rule
from ..server.rules.coordinates import Mean
from ..server.selection import SELECTIONS, ClientSelection, Poisson, Uniform
from ..server.step import ServerStep
from ..task.augment import AUGMENTATIONS, Augmentation, Change
from ..task.batches import BATCHING
from ..task.client_optimizer import ELEMENTWISE, STATES, ClientOptimizer
from ..task.kernels import KERNELS
from ..task.task import Numerics
from .client_weights import ClientWeights
from .data_seeds import DataSeeds
from .schedule import FORMS, Schedule

AnyMetric = Metric | Callable[..., Any] | str  # a name, or a function of (outputs, targets)
DTYPES = {"float32": torch.float32, "float64": torch.float64}
MAY_CHANGE = "may change"
MAY_GROW = "may grow"
# roles of settings
COMPARISON = "comparison"  # all rows of a comparison have the same value
EVALUATION = "evaluation"  # of no use where nothing is evaluated
FINAL_RUN = "final run"  # of a search: its trials do without
MESSAGES = "messages"  # of no use where nothing is sent
MACHINE = "machine"  # where and how a run computes: figures stay the same but for their last bits
SAFEGUARD = "safeguard"  # acts only where something is lost: a message, a host, the process
# why `advise` refuses some
_ALL_SPENT = "each candidate is judged with all of its gradients spent"
_AT_THE_END = "candidates are judged at their end"
_NOT_SAVED = "trainings are short and are not saved"
_EVERYONE = "all clients take part"
_VALIDATION = "parts of the model are chosen by figures of clients, which have no noise"
_HONEST = "the advice is about honest clients; see docs/attacks.md"
ALL_UP_TO = 20  # clients: as many are all heard in every round unless `sample` says otherwise


def parse_target(value: Any) -> float | None:
    """A number, from text too; None or "" for none."""
    if value is None or value == "":
        return None
    try:
        if not isinstance(value, bool) and math.isfinite(float(value)):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise SettingError(f"target_value must be a number, or '' for no target, got {value!r}")


@dataclass(frozen=True)
class Run(Knobs):
    """How long a run is, and how often it is repeated."""

    rounds: int = knob(
        200,
        "communication rounds",
        low=0,
        on_resume=MAY_GROW,
        refused_in={"advise": "each candidate gets as many rounds as it can pay with `gradients`"},
    )
    seeds: int = knob(
        1,
        "runs with seeds seed, seed + 1, ...",
        low=1,
        roles=(COMPARISON,),
        refused_in={"deployment": "one seed per run"},
    )
    seed: int = knob(
        0,
        "the first seed: initialisation, sampling, batches, P",
        low=0,
        high=2**63 - 1,
        roles=(COMPARISON,),
    )
    data_seeds: DataSeeds = knob(
        DataSeeds(),
        "repeats over the seed of the data too: so many seeds from the data's own on, or a list "
        "such as '4,8,15'. Repeat r trains with seed + r on the partition of data seed r, so that "
        "intervals cover both; '' = one partition for all repeats",
        parse=DataSeeds.parse,
        write=str,
        takes=(int, Sequence[int]),
        roles=(COMPARISON,),
        refused_in={
            "advise": "the advice is about these clients",
            "deployment": "sites have the data that they have",
            "splits": "parts of the model are compared client by client, on the same clients",
        },
    )
    bytes: int = knob(
        0,
        "stop before more bytes are sent, both directions together; 0 = no budget",
        low=0,
        roles=(COMPARISON, MESSAGES),
        refused_in={"advise": _ALL_SPENT},
    )
    checkpoint_every: int = knob(
        0,
        "rounds between checkpoints; 0 = by time alone",
        low=0,
        roles=(SAFEGUARD,),
        on_resume=MAY_CHANGE,
        refused_in={"advise": _NOT_SAVED},
    )
    checkpoint_minutes: float = knob(
        5.0,
        "minutes after which the next round's end saves a checkpoint; 0 = not by time",
        low=0,
        roles=(SAFEGUARD,),
        on_resume=MAY_CHANGE,
        refused_in={"advise": _NOT_SAVED},
    )


@dataclass(frozen=True)
class Participation(Knobs):
    """Who takes part in a round."""

    sample: int = knob(
        0,
        f"S, clients heard per round; 0 = all up to {ALL_UP_TO}, of more a tenth but at least 10",
        low=0,
        roles=(MESSAGES,),
    )
    selection: ClientSelection = knob(
        Uniform(),
        "who is heard in a round: 'uniform', or 'power-of-choice(candidates=20)', those of 20 "
        "candidates whose loss is largest; see: list selections",
        parse=SELECTIONS.parse,
        write=SELECTIONS.text,
        roles=(MESSAGES,),
        refused_in={
            "deployment": "candidates would be asked for their losses, to which no owner of a site "
            "has agreed, and a site counts privacy by what it is asked, not by a draw it cannot see"
        },
    )
    quorum: int = knob(
        1,
        "messages a round needs to count; fewer leave the server as it is",
        low=1,
        roles=(MESSAGES, SAFEGUARD),
    )
    held_out: int = knob(
        0,
        "clients that are left out of training, personalised and evaluated at the end",
        low=0,
        roles=(COMPARISON,),
        refused_in={"advise": _EVERYONE, "deployment": "every client that has agreed takes part"},
    )
    held_out_rounds: int = knob(
        10,
        "rounds of personalisation that held-out clients get",
        low=0,
        roles=(COMPARISON,),
        acts_with={"held_out": OtherThan(0)},
        refused_in={"advise": _EVERYONE},
    )
    client_weights: ClientWeights = knob(
        ClientWeights(),
        "p_i, how much each client counts, whatever the method's own weighting: a file of "
        "client,weight lines, or a JSON object; '' = as the method weighs",
        parse=ClientWeights.parse,
        write=str,
        takes=(Mapping[Any, float],),
        roles=(MESSAGES,),
        refused_in={"deployment": "sites count by their samples"},
    )


@dataclass(frozen=True)
class Optimisation(Knobs):
    """How clients and server step, whatever the method."""

    batch: int = knob(
        64,
        "mini-batch size",
        low=1,
        high=10**9,
        acts_with={"batching": ("replace", "epochs", "poisson")},
    )
    batching: str = knob(
        "replace",
        "mini-batches with replacement, without (epochs), all data (full), or each sample by "
        "itself (poisson)",
        choices=BATCHING,
    )
    augment: Augmentation = knob(
        Augmentation(),
        "random changes of the pictures of every mini-batch, drawn anew each time, e.g. "
        "'crop(padding=4) + flip'; see: list augmentations",
        parse=AUGMENTATIONS.parse,
        write=AUGMENTATIONS.text,
        takes=(Change,),
    )
    schedule: Schedule = knob(
        Schedule(),
        f"learning rates over rounds: {FORMS}; products (warmup:5*cosine); or a curve for each "
        "field of the method, batch or server_lr (lr=inverse:0.1 + nu=inverse:0.1:2)",
        parse=Schedule.parse,
        write=str,
    )
    optimizer: str = knob(
        "sgd",
        f"how clients step, for the methods that leave it open: {', '.join(ELEMENTWISE)}",
    )
    optimizer_options: str = knob(
        "", "its options, e.g. 'momentum=0.9' or 'betas=(0.9, 0.99), weight_decay=0.01'"
    )
    optimizer_state: str = knob(
        "reset",
        "what it keeps (momentum, ...): reset each round, or private to each client between rounds",
        choices=STATES,
    )
    lr_scale: str = knob(
        "",
        "factors on the learning rate by parameter names, the last match wins: "
        "'features.*=0.1, head.*=10'",
    )
    standardise_targets: bool = knob(
        True,
        "train on real targets less their mean, over their standard deviation; figures and "
        "predictions are in their own units. For mse, l1, huber, smooth_l1 and quantile, where "
        "targets are not about standard already; false = on targets as they are",
        roles=(COMPARISON,),
    )
    clip: float = knob(0.0, "largest norm of a local gradient; 0 = no clipping", low=0)
    weight_decay: float = knob(0.0, "L2 weight added to local gradients", low=0)
    server_optimizer: str = knob(
        "sgd",
        "server step on the aggregated change: any torch.optim name, or yogi",
        roles=(MESSAGES,),
    )
    server_lr: float = knob(1.0, "server step size", above=0, roles=(MESSAGES,))
    server_options: str = knob(
        "",
        "its options, e.g. 'momentum=0.9' or 'betas=(0.9, 0.99), eps=1e-3'",
        roles=(MESSAGES,),
    )
    finetune_steps: int = knob(
        0, "steps on every personal model before it is used or evaluated", low=0
    )
    finetune_lr: float = knob(
        0.1, "step size of those", above=0, acts_with={"finetune_steps": OtherThan(0)}
    )
    statistics: str = knob(
        "averaged",
        "running statistics (BatchNorm): averaged with the model where one is sent, or private to "
        "each client (FedBN)",
        choices=STATISTICS,
    )

    @property
    def client_optimizer(self) -> ClientOptimizer:
        """The clients' optimiser."""
        return ClientOptimizer(
            self.optimizer, self.optimizer_options, self.optimizer_state, self.lr_scale
        )

    @property
    def server_step(self) -> ServerStep:
        """The server's optimiser."""
        return ServerStep(self.server_optimizer, self.server_lr, self.server_options)


@dataclass(frozen=True)
class Communication(Knobs):
    """How messages are coded and combined."""

    channel: Channel = knob(
        Channel(),
        "how messages up are coded, e.g. 'qsgd(levels=16)', 'feedback + topk(share=0.01) + half'; "
        "see: channels",
        parse=CHANNELS.parse,
        write=CHANNELS.text,
        takes=(Stage,),
        roles=(MESSAGES,),
    )
    rule: Rule = knob(
        Mean(),
        "the server's aggregation rule, e.g. 'median', 'krum(f=2)', "
        "'bucketing(size=2) + trimmed-mean(f=1)'; see: rules",
        parse=RULES.parse,
        write=RULES.text,
        roles=(MESSAGES,),
    )
    secure_sums: SecureSums | None = knob(
        None,
        "the server learns the sum of a round's messages, and none of them by itself: true, or "
        "'secagg(clip=0.5, survivors=0.8)'",
        parse=parse_sums,
        write=sums_text,
        takes=(bool,),
        roles=(MESSAGES,),
    )


TIMINGS = ("rounds", "arrivals")


@dataclass(frozen=True)
class Timing(Knobs):
    """Where hosts are, when messages come, and what the server does then."""

    engine: str = knob(
        "local",
        f"where hosts are: {', '.join(f'{e.where} ({name})' for name, e in ENGINES.items())}",
        choices=tuple(ENGINES),
        roles=(MACHINE,),
        renamed={"inprocess": "engine='local'", "asynchronous": "timing='arrivals'"},
    )
    timing: str = knob(
        "rounds",
        "synchronous rounds, or each message used as it arrives (arrivals); then a round is "
        "`sample` arrivals, in simulated time with engine local and in real time otherwise",
        choices=TIMINGS,
        refused_in={"deployment": "sites take part in synchronous rounds"},
    )
    delays: Delays | None = knob(
        None,
        "how long clients take, in simulated time: 'constant(mean=1)', 'exponential(mean=1)', "
        "'pareto(shape=1.5)', 'lognormal(sigma=1)', 'trace(path=\"delays.csv\")'; any of them with "
        "spread=, slow= and slowdown= for clients that are unlike",
        parse=DELAYS.parse,
        write=DELAYS.text,
        refused_in={"deployment": "time is real here"},
    )
    concurrency: int = knob(
        0,
        "arrivals: clients that train at the same time; 0 = `sample`, or all where everyone trains",
        low=0,
    )
    next_client: str = knob(
        "sampled",
        "arrivals: who starts when a message has arrived, one sampled among the idle clients "
        "or the same",
        choices=NEXT,
    )
    staleness: Staleness = knob(
        Constant(),
        "arrivals: the weight of a message by its staleness, 'constant', 'polynomial(a=0.5)' "
        "or 'hinge(a=10, b=4)'",
        parse=STALENESS.parse,
        write=STALENESS.text,
    )
    buffer: int = knob(
        1, "arrivals: messages per step of the server, through its rule (FedBuff)", low=1
    )
    change_from: str = knob(
        "start",
        "arrivals: a model that arrives is a change from the one its client started from, or "
        "from the newest (FedAsync's mixing)",
        choices=SINCE,
    )

    @property
    def asynchronous(self) -> bool:
        """Whether messages are used one by one."""
        return self.timing == "arrivals"

    @property
    def carrier(self) -> EngineTraits:
        """The properties of this engine."""
        return ENGINES[self.engine]


@dataclass(frozen=True)
class Machines(Knobs):
    """Hosts in other processes: where they run, and how long they are waited for."""

    address: str = knob(
        "",
        "ray: HOST:PORT of a cluster, 'auto' on one of its machines; '' = start one here",
        roles=(MACHINE,),
        on_resume=MAY_CHANGE,
    )
    cpus_per_host: float = knob(
        1.0,
        "ray: CPUs of each host, with as many threads",
        above=0,
        roles=(MACHINE,),
        on_resume=MAY_CHANGE,
    )
    gpus_per_host: float = knob(
        0.0,
        "ray: GPUs of each host; below 1 several share one",
        low=0,
        roles=(MACHINE,),
        on_resume=MAY_CHANGE,
    )
    deadline: float = knob(
        0.0,
        "ray: seconds after which a round continues without hosts that have not answered; their "
        "clients count as missing; 0 = wait for all",
        low=0,
        roles=(SAFEGUARD,),
        on_resume=MAY_CHANGE,
    )
    patience_for_hosts: float = knob(
        60.0,
        "ray: seconds in which a host that was lost may come back before the round continues",
        low=0,
        roles=(SAFEGUARD,),
        on_resume=MAY_CHANGE,
    )

    @property
    def place(self) -> Place:
        """Where hosts run on a Ray cluster."""
        return Place(self.address, self.cpus_per_host, self.gpus_per_host)


@dataclass(frozen=True)
class Adversary(Knobs):
    """Malicious clients, in simulations."""

    attack: Attack | None = knob(
        None,
        "what malicious clients do, e.g. 'sign-flip', 'same-value(std=100)', 'data-poison'; "
        "see: attacks",
        parse=ATTACKS.parse,
        write=ATTACKS.text,
        refused_in={"advise": _HONEST, "deployment": "malicious clients are for simulations"},
    )
    malicious: float = knob(
        0.0,
        "malicious clients: below 1 their share, from 1 on their number",
        low=0,
        refused_in={"advise": _HONEST},
    )

    def malicious_among(self, clients: int) -> int:
        """How many of these clients are malicious."""
        return how_many(self.malicious, clients)


@dataclass(frozen=True)
class Privacy(Knobs):
    """Differential privacy of every client: who adds noise, and what may be spent."""

    privacy: Protection | None = knob(
        None,
        "who adds noise to clipped messages: 'central' (the server: protects from whoever sees "
        "models), 'distributed' (clients, in secure sums), 'local' (each client by itself), or "
        "'samples' (each client, to every gradient: protects samples); see: list protections",
        parse=PROTECTIONS.parse,
        write=PROTECTIONS.text,
        roles=(MESSAGES,),
        refused_in={"splits": _VALIDATION},
    )
    epsilon: float = knob(
        0.0,
        "the privacy budget of every client: noise is chosen for the planned rounds, and the run "
        "stops before more is spent; alone it means privacy 'central'; 0 = none",
        low=0,
        roles=(MESSAGES,),
        refused_in={"splits": _VALIDATION},
    )
    delta: float = knob(
        1e-5,
        "δ, at which ε is counted: well below 1 over the number of clients",
        above=0,
        below=1,
        roles=(MESSAGES,),
        acts_with={"privacy": OtherThan(None)},
    )
    noise_source: str = knob(
        "secret",
        "where noise comes from: the operating system's cryptographic source (secret), or the "
        "seed of the run, so that it repeats to the bit and protects nobody from who knows it",
        choices=SOURCES,
        roles=(MESSAGES,),
        acts_with={"privacy": OtherThan(None)},
        refused_in={"deployment": "noise that can be repeated protects nobody"},
    )

    @property
    def noise_by_server(self) -> bool:
        """Whether the server adds noise."""
        p = self.privacy
        return p is not None and not (p.at_client or p.in_sums)


@dataclass(frozen=True)
class Evaluation(Knobs):
    """When models are evaluated, and by which figures."""

    eval_every: int = knob(
        1,
        "rounds between evaluations; 0 = at the end only",
        low=0,
        roles=(COMPARISON, EVALUATION),
        refused_in={"advise": _AT_THE_END},
    )
    eval_train: bool = knob(
        False,
        "evaluated rounds have loss and accuracy on training data too: curves of both",
        roles=(EVALUATION,),
        acts_with={"eval_every": OtherThan(0)},
    )
    metrics: tuple[Metric, ...] = knob(
        (),
        f"further figures, e.g. 'auc,f1': {', '.join(METRICS.built_in)}, module:function; "
        "'' = none, or rmse and r2 for a regression",
        parse=parse_metrics,
        write=metrics_text,
        takes=(AnyMetric, Sequence[AnyMetric]),
        roles=(COMPARISON, EVALUATION),
        refused_in={"advise": "metric='auc', for example, says what candidates are judged by"},
    )
    metric: str = knob(
        "",
        "the figure that a target is about and candidates are chosen by: accuracy, loss or one of "
        "the metrics; '' = accuracy, or the loss of a regression",
        roles=(COMPARISON, EVALUATION),
    )
    positive: str = knob(
        "",
        "of two classes, the label of the one that f1, precision, recall, sensitivity, "
        "specificity and pr_auc are about; '' = known by its name (yes, ja, true, 1, ill, ...), "
        "or the rarer one in training data",
        parse=parse_positive,
        write=str,
        takes=(bool, int, float),
        roles=(COMPARISON, EVALUATION),
    )
    target_value: float | None = knob(
        None,
        "stop when the chosen metric, pooled over the clients' test data, is as good as this "
        "number; '' = no target",
        parse=parse_target,
        write=lambda target: target,
        roles=(COMPARISON, EVALUATION, FINAL_RUN),
        refused_in={"advise": _ALL_SPENT},
    )
    patience: int = knob(
        0,
        "stop after this many evaluations without a better one on validation data; 0 = never",
        low=0,
        roles=(EVALUATION,),
        refused_in={"advise": _ALL_SPENT},
    )
    patience_metric: str = knob(
        "",
        "the figure on validation data that says which evaluation is better: loss, accuracy or one "
        "of the metrics; '' = the chosen metric, or the loss",
        roles=(EVALUATION,),
        refused_in={"advise": _ALL_SPENT},
    )
    keep_best: bool = knob(
        False,
        "keep the models of the best evaluation on validation data, as well as the last ones",
        roles=(EVALUATION, FINAL_RUN),
        refused_in={
            "advise": _AT_THE_END,
            "deployment": "models are with their owners, who keep the last ones",
        },
    )

    def figure(self, classes: int) -> str:
        """The figure that a run is about, by the number of classes of its data (0: real targets).

        >>> Settings().figure(10), Settings().figure(0), Settings(metric="loss").figure(10)
        ('accuracy', 'loss', 'loss')
        """
        return self.metric or ("accuracy" if classes else "loss")

    @property
    def validates(self) -> bool:
        """Whether evaluations look at validation data too."""
        return bool(self.patience or self.keep_best)

    @property
    def watched(self) -> str:
        """The figure on validation data that says which evaluation is better."""
        return self.patience_metric or self.metric or "loss"

    @property
    def evaluated_splits(self) -> tuple[str, ...]:
        """The parts of the data that evaluated rounds look at, test data first."""
        more = {"valid": self.validates, "train": self.eval_train}
        return ("test", *(split for split, wanted in more.items() if wanted))

    @property
    def split_columns(self) -> list[str]:
        """The columns of an evaluated round that are about validation and training data.

        >>> Settings(patience=3, metric="auc").split_columns
        ['valid_loss', 'valid_accuracy', 'valid_auc']
        >>> Settings(eval_train=True).split_columns
        ['train_loss', 'train_accuracy']
        """
        names = {"valid": ("loss", "accuracy", self.watched), "train": ("loss", "accuracy")}
        splits = self.evaluated_splits[1:]
        return [f"{split}_{name}" for split in splits for name in dict.fromkeys(names[split])]


@dataclass(frozen=True)
class Resources(Knobs):
    """Where and in what precision a run computes."""

    device: str = knob("cpu", "cpu, cuda, cuda:1, mps, ...", roles=(MACHINE,))
    dtype: str = knob("float32", "numbers of models and messages", choices=tuple(DTYPES))
    kernel: str = knob(
        "auto", "how the cohort gradient is computed", choices=KERNELS, roles=(MACHINE,)
    )
    hosts: int = knob(
        1,
        "hosts that share the honest clients, each its own process unless the engine is local",
        low=1,
        roles=(MACHINE,),
        refused_in={"advise": "who hosts the clients changes no figure"},
    )
    threads: int = knob(
        0,
        "CPU threads; 0 = torch's choice",
        low=0,
        high=4096,
        roles=(MACHINE,),
        on_resume=MAY_CHANGE,
    )
    chunk: int = knob(
        0,
        "clients at once; 0 = as many as fit in memory",
        low=0,
        roles=(MACHINE,),
        on_resume=MAY_CHANGE,
    )
    memory: float = knob(
        2.0,
        "GiB for the clients computed at once, and for private rows before they move to a file",
        above=0,
        roles=(MACHINE,),
        on_resume=MAY_CHANGE,
    )


SECTIONS: tuple[type[Knobs], ...] = (
    Run,
    Participation,
    Optimisation,
    Communication,
    Timing,
    Machines,
    Adversary,
    Privacy,
    Evaluation,
    Resources,
)


__all__ = ["DTYPES", "SECTIONS", "Settings", "Timing", "default_settings", "fixed_on_resume"]


@dataclass(frozen=True)
class Settings(
    Resources,
    Evaluation,
    Privacy,
    Adversary,
    Machines,
    Timing,
    Communication,
    Optimisation,
    Participation,
    Run,
):
    """Everything about a run but its method, model and data."""

    renamed: ClassVar[dict[str, str]] = {
        "clock": "engine='processes' or 'ray' (real time), or 'local' (simulated)",
        "workers": "engine='processes', hosts=N",
        "target_accuracy": "target_value (with metric='accuracy')",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.attack) != bool(self.malicious):
            missing = (
                "attack must be given with malicious, got 'none'"
                if self.malicious
                else "malicious must be above 0 with an attack, got 0"
            )
            raise SettingError(
                f"{missing}: how many clients are malicious and what they do go together, "
                "e.g. attack 'sign-flip' and malicious 0.2"
            )
        self._check_timing()
        self._check_data_seeds()
        self._check_privacy()
        _ = self.server_step  # refuses options that do not fit
        _ = self.client_optimizer
        check_device(self.device)
        if self.validates and not self.eval_every:
            name = "patience" if self.patience else "keep_best"
            raise SettingError(
                f"eval_every must be a whole number >= 1 with {name}, got 0: there must be "
                "evaluations to choose among"
            )
        if self.target_value is not None and not self.eval_every:
            raise SettingError(
                "eval_every must be a whole number >= 1 with a target_value, got 0: only an "
                "evaluated round can reach it"
            )
        if self.metric:
            direction(self.metric, self.metrics)  # refuses an unknown one
        counted = dict.fromkeys(("loss", "accuracy", *(m.name for m in self.metrics)))
        if self.patience_metric and self.patience_metric not in {*counted, self.metric}:
            raise SettingError(
                f"patience_metric must be one of {', '.join(counted)} (the setting metrics adds "
                f"others), got {self.patience_metric!r}"
            )

    def _check_data_seeds(self) -> None:
        """As many repeats as seeds of the data; refuse another number, or hosts on Ray."""
        count = self.data_seeds.count
        if not count:
            return
        if self.seeds not in (1, count):
            raise SettingError(
                f"seeds must be left out or {count}, one for each of data_seeds, got {self.seeds}: "
                "repeats that share a partition would make the interval too narrow"
            )
        if self.carrier.loads_data:
            raise SettingError(
                f"data_seeds must be left out with engine {self.engine!r}, whose hosts load one "
                f"data set by its name, got {str(self.data_seeds)!r}; engine 'local' or "
                "'processes'"
            )
        object.__setattr__(self, "seeds", count)

    def _check_privacy(self) -> None:
        """An amount of noise, and nothing that would release what it does not cover."""
        if self.epsilon and self.privacy is None:
            object.__setattr__(self, "privacy", Central())
        if self.privacy is None:
            return
        text = PROTECTIONS.text(self.privacy)
        if not self.epsilon and not self.privacy.noise:
            raise SettingError(
                f"epsilon must be a number > 0 with privacy {text!r}, got 0: or say how much noise "
                "there is, e.g. 'central(noise=1)'"
            )
        if self.privacy.in_sums != (self.secure_sums is not None):
            needed = (
                f"secure_sums must be given with privacy {text!r}, got none: without them the "
                "server would see messages with a share of the noise each; e.g. 'secagg(clip=1)'"
                if self.privacy.in_sums
                else f"privacy must be 'distributed' with secure_sums, got {text!r}: the server "
                "cannot clip what it does not see, and messages with noise of their own would be "
                "clipped again"
            )
            if self.privacy.in_sums or not self.privacy.unit == "sample":
                raise SettingError(needed)
        if self.privacy.in_sums and isinstance(self.selection, Poisson):
            raise SettingError(
                f"selection must be 'uniform' with privacy {text!r}, got 'poisson': how many share "
                "the noise must be known"
            )
        where = f"with privacy {text!r}" + (f" (epsilon {self.epsilon:g})" if self.epsilon else "")
        for name, plain, reason in (
            ("patience", 0, "when a run stops would depend on figures without noise"),
            ("target_value", None, "when a run stops would depend on figures without noise"),
            ("keep_best", False, "which round is kept would depend on figures without noise"),
            ("quorum", 1, "a round that is left out would show who was missing"),
            ("timing", "rounds", "messages that are used one by one have no sum to add noise to"),
            ("client_weights", ClientWeights(), "every client counts alike, so that C bounds it"),
        ):
            if getattr(self, name) != plain:
                values = self.as_dict()
                default = type(self)().as_dict()[name]
                raise SettingError(
                    f"{name} must be {default!r} {where}, got {values[name]!r}: {reason}"
                )
        if self.selection.asks:
            raise SettingError(
                f"selection must be 'uniform' or 'poisson' {where}, got "
                f"{SELECTIONS.text(self.selection)!r}: candidates would send their losses as they "
                "are"
            )
        if self.bytes and isinstance(self.selection, Poisson) and self.noise_by_server:
            raise SettingError(
                f"bytes must be 0 {where} and selection 'poisson', got {self.bytes}: when a run "
                "stops would depend on how many clients were heard, which is secret"
            )
        if self.rule != Mean() and self.noise_by_server:
            raise SettingError(
                f"rule must be 'mean' {where}, got {RULES.text(self.rule)!r}: noise covers the sum "
                "of messages, and this rule looks at single ones; with privacy 'local' any rule "
                "can be used"
            )

    def _check_timing(self) -> None:
        """Refuse settings of another engine or timing."""
        values = self.as_dict()
        for section, usable, needed in (
            (Machines, self.carrier.cluster, "engine='ray'"),
            (Timing, self.asynchronous, "timing='arrivals'"),
        ):
            for f in dataclasses.fields(section):
                free = f.name in ("engine", "timing", "delays")
                if not free and not usable and getattr(self, f.name) != f.default:
                    raise SettingError(f"{f.name}: {values[f.name]!r} requires {needed}")
        if self.carrier.remote and self.delays is not None:
            raise SettingError(
                f"delays: {DELAYS.text(self.delays)!r} requires engine='local'; with "
                f"{self.engine!r} time is real"
            )
        if self.carrier.remote and self.attack is not None and self.attack.colludes:
            raise SettingError(
                f"attack: {ATTACKS.text(self.attack)!r} requires engine='local': it reads the "
                "honest messages of the round, which are in other processes"
            )

    def __repr__(self) -> str:
        """The settings that differ from their defaults."""
        values = self.as_dict()
        changed = [
            f"{f.name}={values[f.name]!r}"
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default
        ]
        return f"Settings({', '.join(changed)})"

    def sampled(self, eligible: int, hears_all: bool = False) -> int:
        """S for this many clients; all of them for a method that needs that.

        >>> [Settings().sampled(n) for n in (1, 5, 20, 21, 100, 1000)]
        [1, 5, 20, 10, 10, 100]
        """
        if self.sample > eligible:
            raise SettingError(
                f"sample must be at most the {eligible} clients that can take part, "
                f"got {self.sample}"
            )
        if hears_all and self.sample not in (0, eligible):
            raise SettingError(
                f"sample must be 0 for this method, which must hear all {eligible} clients, "
                f"got {self.sample}"
            )
        if hears_all or eligible <= ALL_UP_TO:
            return self.sample or eligible
        return self.sample or max(10, round(0.1 * eligible))

    def numerics(self, seed: int) -> Numerics:
        """How a task is computed in this run, under one of its seeds."""
        return Numerics(
            torch.device(self.device),
            DTYPES[self.dtype],
            self.kernel,
            self.clip,
            self.weight_decay,
            seed,
        )


@lru_cache(maxsize=1)
def default_settings() -> Settings:
    """The settings of a run that sets none."""
    return Settings()


def fixed_on_resume(schedule: str = "constant") -> tuple[str, ...]:
    """The settings that must be the same when a run is resumed.

    The number of rounds is one of them where the schedule spreads the rates over all rounds: with
    more rounds, those that are done would have had other rates.

    >>> "batch" in fixed_on_resume(), "threads" in fixed_on_resume()
    (True, False)
    >>> "rounds" in fixed_on_resume(), "rounds" in fixed_on_resume("cosine")
    (False, True)
    """
    spread = Schedule.parse(schedule).over_all_rounds
    free = {MAY_CHANGE} if spread else {MAY_CHANGE, MAY_GROW}
    fields = dataclasses.fields(Settings)
    return tuple(f.name for f in fields if f.metadata["on_resume"] not in free)


def check_device(device: str) -> None:
    """Refuse a device that this machine does not have."""
    try:
        if torch.empty(1, device=device).device.type == "meta":
            raise RuntimeError("it holds no numbers")
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise SettingError(
            f"device: {device!r} is not available here ({reason}); 'cpu' always is"
        ) from None

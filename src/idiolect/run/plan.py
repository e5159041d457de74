"""What one run is made of: method, data, model and settings.

From flags, a TOML file, a run directory, or objects of the user's program.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, get_type_hints

from torch import nn

from .. import data, models
from ..core.documents import expect_fields, plain
from ..core.knobs import SettingError, build, nearest, with_role
from ..core.registry import name_and_options, split_outside
from ..data.federation import Federation
from ..method import Method
from ..methods import METHODS, PRESET, make_method, name_of, named_method, unfold
from ..task.groups import AnyTask, TaskGroups
from ..task.initial import Initial
from ..task.losses import named_loss
from ..task.task import Task
from .identity import RunIdentity
from .settings import COMPARISON, Settings

KEY_FORMAT = 1  # of `Plan.key`: a change in what stored results mean makes the old ones void
UNWRITTEN = ("name", "varied", "instance")


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything a run needs.

    All by name, it is plain data: it can be written to a file and made again from it. With a method
    that is an object of the user's (`instance`), or data and a model that are (`data` is then "" or
    a name in a `Stock`), only the program that has them can run it again.
    """

    method: str
    method_fields: dict[str, Any] = field(default_factory=dict)
    data: str = "synthetic"
    data_options: dict[str, Any] = field(default_factory=dict)
    model: str = ""  # "" = chosen from the data
    model_options: dict[str, Any] = field(default_factory=dict)
    loss: str = ""  # "" = chosen from the data
    settings: dict[str, Any] = field(default_factory=dict)
    task_options: dict[str, Any] = field(default_factory=dict)  # frozen, weights, weights_missing
    own: dict[str, Any] = field(default_factory=dict)  # of one row of a comparison; they win
    name: str = ""  # in tables; "" = that of the method
    varied: dict[str, Any] = field(default_factory=dict)  # what tells it from others of its name
    instance: Method | None = None  # the method if it is an object, with `method_fields` replaced

    @classmethod
    def of(cls, spec: AnyMethod | Plan, **parts: Any) -> Plan:
        """A plan from a method, its class, a text such as "lp-proj:p=1,sample=5", or a plan.

        `parts` are fields of the plan. Data are objects unless they are named there.

        >>> plan = Plan.of("lp-proj:p=1,sample=5", settings={"rounds": 9})
        >>> plan.method_fields, plan.run_settings, plan.data
        ({'p': '1'}, {'rounds': 9, 'sample': '5'}, '')
        """
        if isinstance(spec, Plan):
            return replace(spec, **parts)
        if isinstance(spec, str):
            name, method_fields, own = row_spec(spec, parts.get("settings", ()))
            return cls(name, method_fields, **{"data": "", "own": own, **parts})
        method = read_method(spec)
        return cls(name_of(method), instance=method, **{"data": "", **parts})

    @property
    def run_settings(self) -> dict[str, Any]:
        return {**self.settings, **self.own}

    @property
    def label(self) -> str:
        """A few words: the name, and what is varied."""
        values = (f"{name}={_short(value)}" for name, value in self.varied.items())
        return " ".join([self.name or self.method, *values])

    @property
    def short_name(self) -> str:
        """The name without fields and settings: of folders and files."""
        return (self.name or self.method).partition(" ")[0]

    @property
    def note(self) -> str:
        """The settings of this plan alone, as they stand behind its method's label."""
        return "".join(f" {name}={value}" for name, value in self.own.items())

    @property
    def is_named(self) -> bool:
        """Whether method, data and model have names, by which they can be made again."""
        return bool(self.data) and self.instance is None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, of a plan whose parts all have names."""
        return {name: value for name, value in asdict(self).items() if name not in UNWRITTEN}

    @classmethod
    def read(cls, saved: Any, where: str) -> Plan:
        """The inverse of `as_dict`, of unknown origin; SettingError names what is wrong in it."""
        hints = get_type_hints(cls)
        try:
            expect_fields(saved, {n: hint for n, hint in hints.items() if n not in UNWRITTEN})
        except ValueError as error:
            raise SettingError(f"{where}: {error}") from None
        return cls(**saved)

    def key(self, task: AnyTask, federation: Federation) -> str:
        """A digest of everything that its results depend on, but for the seeds."""
        settings = build(Settings, self.of_seed(0), "run")
        identity = RunIdentity.of(self.make_method(), task, federation, settings).as_dict()
        del identity["id"]
        parts = [KEY_FORMAT, plain(identity), self.label]
        if self.make_settings().data_seeds:
            parts.append("a partition for each seed")
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def of_seed(self, seed: int, data_seed: int | None = None) -> dict[str, Any]:
        """The settings of a run with one seed, which is one of many, and one of the data's seeds.

        One thread by default, so that results do not depend on how many run at the same time.
        """
        data_seeds = "" if data_seed is None else [data_seed]
        one = {"seed": seed, "seeds": 1, "data_seeds": data_seeds}
        return {"threads": 1, **self.run_settings, **one}

    def with_data_seeds(self, federation: Federation) -> Plan:
        """The same plan with the seeds of these data as a list, where it says how many."""
        seeds = self.make_settings().data_seeds.of(federation)
        return (
            replace(self, settings={**self.settings, "data_seeds": str(seeds)}) if seeds else self
        )

    def data_seed(self, seed: int) -> int | None:
        """The seed of the data that a seed of training goes with; see `with_data_seeds`."""
        settings = self.make_settings()
        if not settings.data_seeds:
            return None
        return settings.data_seeds.values[seed - settings.seed]

    def make_method(self) -> Method:
        if self.instance is None:
            return make_method(self.method, **self.method_fields)
        if not self.method_fields:
            return self.instance
        kind = type(self.instance)
        changed = unfold(kind, self.method_fields, f"method {self.method}")
        return build(kind, {**self.instance.as_dict(), **changed}, f"method {self.method}")

    @property
    def method_class(self) -> type[Method]:
        return METHODS.find(self.method)[0] if self.instance is None else type(self.instance)

    def make_settings(self) -> Settings:
        return build(Settings, self.run_settings, "run")

    def make_data(self) -> Federation:
        return data.load(self.data, **self.data_options)

    def make_tasks(self, federation: Federation) -> AnyTask:
        """The task; or one for each of several models ("linear | mlp(hidden=32)"), dealt in turn.

        >>> from idiolect.data import load
        >>> plan = Plan("local", model="linear | mlp(hidden=8)")
        >>> plan.make_tasks(load("synthetic", clients=2))
        TaskGroups(linear: d = 610, mlp(hidden=8): d = 578)
        """
        specs = model_specs(self.model)
        if not specs:
            return self.make_task(federation)
        if self.model_options:
            raise SettingError(
                f"model: {next(iter(self.model_options))} must stand in parentheses behind the "
                f"model it is for, as in 'mlp(hidden=32)', got it beside {self.model!r}"
            )
        if self.task_options.get("weights"):
            raise SettingError(
                "weights must be left out with several models: a file has those of one, got "
                f"{self.task_options['weights']!r}"
            )
        plans = {
            text: replace(self, model=name, model_options=options)
            for text, (name, options) in specs.items()
        }
        tasks = {text: plan.make_task(federation) for text, plan in plans.items()}
        return TaskGroups(tasks) if len(tasks) > 1 else next(iter(tasks.values()))

    def make_task(self, federation: Federation) -> Task:
        """The task of a plan with one model."""
        loss = self.loss or default_loss(federation)
        named_loss(loss)  # refuses an unknown one
        make = self.model_maker(federation)
        make()  # refuse a bad one now, not under the first seed
        initial = build(Initial, self.task_options, "task")
        return Task(make, loss, **initial.as_dict())

    def model_maker(self, federation: Federation) -> Callable[[], nn.Module]:
        """Makes the model of this plan for such data."""
        loss = self.loss or default_loss(federation)
        shape = federation.shape
        outputs = federation.classes if loss == "cross_entropy" else 1
        tokens = not federation.inputs.is_floating_point()
        if "|" in self.model:
            raise SettingError(
                f"model must be one model here, got {self.model!r}: groups of clients with unlike "
                "models are for run, compare, sweep and tune"
            )
        name = self.model or ("transformer" if tokens else models.default(shape, outputs))
        return partial(models.make, name, shape, outputs, **self.model_options)


def default_loss(federation: Federation) -> str:
    """The loss where none is named: by the kind of the targets."""
    return "cross_entropy" if federation.classes else "mse"


def model_specs(text: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Models with options in one line: name and options by what stands there; {} for a bare name.

    >>> model_specs("linear | mlp(hidden=32)")
    {'linear': ('linear', {}), 'mlp(hidden=32)': ('mlp', {'hidden': '32'})}
    >>> model_specs("mlp")
    {}
    """
    pieces = [piece.strip() for piece in split_outside(text, "|")]
    if len(pieces) == 1 and "(" not in text:
        return {}
    specs = {}
    for piece in pieces:
        name = piece
        while name in specs:  # the same model twice: groups have names of their own
            name += "'"
        model, options = name_and_options(piece, "model")
        # as on the command line: the model reads a number from text where it takes one
        texts = {n: v if isinstance(v, bool) else str(v) for n, v in options.items()}
        specs[name] = model, texts
    return specs


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def method_spec(text: str) -> tuple[str, dict[str, str]]:
    """ "lp-proj:p=1,lam=0.1" to a name and fields. Commas inside parentheses belong to a value.

    >>> method_spec("lp-proj:p=1,lam=0.1")
    ('lp-proj', {'p': '1', 'lam': '0.1'})
    >>> method_spec("fedavg:channel=feedback + qsgd(levels=16, norm=inf),lr=0.2")
    ('fedavg', {'channel': 'feedback + qsgd(levels=16, norm=inf)', 'lr': '0.2'})
    >>> method_spec("mymodule:MyMethod:lr=0.2")
    ('mymodule:MyMethod', {'lr': '0.2'})
    """
    name, _, rest = text.partition(":")
    if rest and name not in METHODS and "=" not in rest.partition(":")[0]:  # module:Name
        attribute, _, rest = rest.partition(":")
        name = f"{name}:{attribute}"
    pairs = [piece.partition("=") for piece in split_outside(rest, ",") if piece.strip()]
    return name, {key.strip().replace("-", "_"): value.strip() for key, _, value in pairs}


def row_spec(
    text: str, explicit: Collection[str] = ()
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A method of a comparison: its name, its fields, and the run settings of its row alone.

    `explicit` are settings that all rows are given: they win over those that a name stands for.

    >>> row_spec("fedavg:steps=3,channel=qsgd(levels=4),sample=5")
    ('fedavg', {'steps': '3'}, {'channel': 'qsgd(levels=4)', 'sample': '5'})
    >>> row_spec("fedavgm:steps=3"), row_spec("fedavgm", ["server_options"])
    (('fedavg', {'steps': '3'}, {'server_options': 'momentum=0.9'}), ('fedavg', {}, {}))
    """
    name, options = method_spec(text)
    entry = named_method(name)
    cls, _ = METHODS.find(entry.method)
    theirs = {f.name for f in fields(cls)} | {PRESET}
    runs = {f.name for f in fields(Settings)}
    common = set(with_role(Settings, COMPARISON))
    for key in options:
        if key not in theirs | runs:
            raise nearest(key, theirs | (runs - common), f"setting of {name}")
        if key in common and key not in theirs:
            flag = key.replace("_", "-")
            raise SettingError(
                f"{key} must be the same for the whole comparison, got one for {name} alone; "
                f"give --{flag}"
            )
    own = {k: v for k, v in options.items() if k not in theirs}
    method_fields = {k: v for k, v in options.items() if k in theirs}
    run = entry.run_beside(explicit)
    return entry.method, {**entry.fields, **method_fields}, {**run, **own}


AnyMethod = Method | type[Method] | str
OneModel = Task | nn.Module | type[nn.Module] | Callable[[], nn.Module]
AnyModel = OneModel | TaskGroups | Sequence[OneModel]

_FEDERATION = (
    "make one with idiolect.Federation.from_arrays, from_frame or from_datasets, "
    "or idiolect.data.load"
)


def read_run(method: Any, settings: dict[str, Any]) -> tuple[Method, dict[str, Any]]:
    """A method, and the settings of its run: those given, over those that its name stands for.

    >>> read_run("fedavgm", {"rounds": 3})[1]
    {'server_options': 'momentum=0.9', 'rounds': 3}
    """
    if not isinstance(method, str):
        return read_method(method), settings
    name, fields = method_spec(method)
    entry = named_method(name)
    return make_method(entry.method, **{**entry.fields, **fields}), {**entry.run, **settings}


def read_method(method: Any) -> Method:
    """A method from an object, a class (its defaults) or a text.

    >>> import idiolect as il
    >>> read_method("lp-proj:p=1,lam=0.5").lam, read_method(il.Ditto) == il.Ditto()
    (0.5, True)
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        name, fields = method_spec(method)
        return make_method(name, **fields)
    if isinstance(method, type) and issubclass(method, Method):
        return method()
    hint = ""
    if _is_model(method) or isinstance(method, Federation):
        hint = "; the order is (method, task, federation)"
    raise SettingError(
        "method must be a method such as idiolect.Ditto(), or a text like 'ditto' or "
        f"'lp-proj:p=1,lam=0.1', got {_kind(method)}{hint}"
    )


def read_tasks(task: Any, federation: Any) -> tuple[AnyTask, str]:
    """The same as `read_task`, or a task for each group of clients with unlike models."""
    if isinstance(task, list | tuple):
        task = TaskGroups(task)
    if not isinstance(task, TaskGroups):
        return read_task(task, federation)
    notes = {name: read_task(model, federation)[1] for name, model in task.models.items()}
    return task.each(lambda model: read_task(model, federation)[0]), next(
        filter(None, notes.values()), ""
    )


def read_task(task: Any, federation: Any) -> tuple[Task, str]:
    """A task from what was given as one; and how its loss was chosen, "" where it was given.

    A module, a class of modules or a function that makes one gets its loss from the data:
    cross_entropy for classes, mse for real targets.
    """
    if isinstance(task, Federation) or isinstance(federation, Task | nn.Module):
        raise SettingError(
            "task must come second, got a federation; the order is (method, task, federation)"
            if isinstance(task, Federation)
            else f"federation must come third, got {_kind(federation)}; "
            "the order is (method, task, federation)"
        )
    read_federation(federation)
    if isinstance(task, Task):
        return task, ""
    if isinstance(task, TaskGroups | list | tuple):
        raise SettingError(
            "task must be one model here, got several: groups of clients with unlike models are "
            "for run, compare, sweep and tune"
        )
    if isinstance(task, type) and issubclass(task, Task):
        raise SettingError(
            "task must be an object, idiolect.Task(module, loss), got the class Task"
        )
    if isinstance(task, Method) or not _is_model(task):
        raise SettingError(
            "task must be a torch.nn.Module, a class or function that makes one, or "
            f"idiolect.Task(module, loss), got {_kind(task)}"
        )
    if not isinstance(task, nn.Module):
        _refuse_arguments(task)
    loss = default_loss(federation)
    reason = f"the data have {federation.classes} classes"
    if not federation.classes:
        reason = "the targets are real numbers"
    return Task(task, loss), f"loss: {loss}, as {reason}; idiolect.Task(module, loss) has another"


def read_federation(federation: Any) -> Federation:
    """The federation, if it is one."""
    if isinstance(federation, Federation):
        return federation
    raise SettingError(f"federation must be a Federation, got {_kind(federation)}; {_FEDERATION}")


def _is_model(argument: Any) -> bool:
    if isinstance(argument, type):
        return issubclass(argument, nn.Module)
    return isinstance(argument, nn.Module | Task) or callable(argument)


def _refuse_arguments(make: Callable[..., Any]) -> None:
    """A class or function whose call needs arguments cannot make a model by itself."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # it does not tell
        return
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]
    if needed:
        name = getattr(make, "__name__", type(make).__name__)
        raise SettingError(
            f"task: {name} needs {', '.join(needed)}; give an object, {name}(...), "
            f"or a function without arguments: lambda: {name}(...)"
        )


def _kind(argument: Any) -> str:
    """What was given, in a few words."""
    if isinstance(argument, type):
        return f"the class {argument.__name__}"
    if isinstance(argument, str):
        return f"the text {argument[:80]!r}"
    return f"an object of type {type(argument).__name__}"


FLOWER = "flower"


def refuse_without_sites(method: Method, settings: Settings, plan: Plan | None = None) -> None:
    """Refuse the engine 'flower', whose clients are in no federation of this process."""
    if settings.engine == FLOWER:
        raise SettingError(
            "engine must not be 'flower' here: it trains with real sites, which keep their data "
            "(docs/deploy.md). A folder for them, with this method and these settings: "
            f"{deploy_command(method, settings, plan)}"
        )


def deploy_command(method: Method, settings: Settings, plan: Plan | None = None) -> str:
    """`idiolect deploy init` with the same method and settings; FOLDER and the like are to be
    filled in.

    >>> deploy_command(make_method("ditto", lam=0.3), Settings(rounds=50))
    'idiolect deploy init FOLDER --sites N --like TABLE --target COLUMN --method ditto --lam 0.3 \
--rounds 50'
    """
    name = name_of(method)
    is_registered = name in METHODS
    kind = type(method)
    words = ["--method", name if is_registered else f"{kind.__module__}:{kind.__qualname__}"]
    by_default = make_method(name) if is_registered else kind()
    words += _flags(method.as_dict(), by_default.as_dict())
    usual = Settings().as_dict()
    words += _flags({**settings.as_dict(), "engine": usual["engine"]}, usual)
    data = ["--like", "TABLE", "--target", "COLUMN"]
    if plan is not None:
        options = plan.data_options
        if plan.data == "table":
            data = ["--like", str(options.get("path") or "TABLE")]
            data += ["--target", str(options.get("target") or "target")]
        elif plan.data:
            data = ["--data", plan.data]
        named = {"model": plan.model, **plan.model_options, "loss": plan.loss}
        words += _flags({**named, **plan.task_options}, {"model": "", "loss": ""})
    return shlex.join(["idiolect", "deploy", "init", "FOLDER", "--sites", "N", *data, *words])


def _flags(values: dict[str, Any], by_default: dict[str, Any]) -> list[str]:
    """A flag for each value that is not the default."""
    flags = []
    for name, value in values.items():
        if name not in by_default or value != by_default[name]:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            flags += [f"--{name.replace('_', '-')}", text]
    return flags

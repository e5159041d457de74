"""A deployed federation in two files: deployment.toml at the server, federation.toml at its sites.

[deployment]   of deployment.toml: name, sites, least, wait, deadline, address, insecure, ...
[federation]   of federation.toml: name, address, insecure, authority (its certificate)
[data]         the form that every site's data must have: the data contract. Of tables: target,
               features, classes, scale, and kinds, which says what the features hold (number,
               text, code; all numbers where it is left out)
[method] [model] [run] [task]   as in any settings file

The second is made from the first (`idiolect deploy init`, `idiolect deploy certificates`). It is
all that a site needs to know of the server's machine, and has no secret in it.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.documents import expect_fields, toml_sections
from ..core.files import regular_file, write_atomic
from ..core.knobs import Knobs, SettingError, build, knob, refused_in
from ..data.prepare.columns import NUMBER
from ..data.prepare.federated import KINDS
from ..methods import name_of
from ..run.plan import FLOWER, Plan, model_specs
from ..run.protection import check_noise_is_given
from ..run.settings import Settings
from .site.agreement import MOST_NAME, TABLE, read_form

FILE = "deployment.toml"
FEDERATION = "federation.toml"
MOST = 1 << 20  # bytes of it
MISSING = "mean"  # what stands for a number that is missing, where all sites read alike
SCALES = ("client", "federated")
ENGINES = ("local", FLOWER)  # that a plan may name: here they mean the same


@dataclass(frozen=True)
class Terms(Knobs):
    """How the server deals with its sites."""

    name: str = knob("", "what the federation is called; deploy init: as its folder")
    sites: int = knob(2, "sites that must be there before the first round", low=1)
    least: int = knob(1, "sites that a later round needs", low=1)
    wait: float = knob(600.0, "seconds in which they may come, before the run stops", above=0)
    deadline: float = knob(
        600.0, "seconds after which a round proceeds without the sites that are late", above=0
    )
    address: str = knob("127.0.0.1:9092", "host:port that the sites connect to")
    most_clients: int = knob(10_000, "clients that a site may have", low=1)
    most_samples: int = knob(
        10_000_000, "samples that a client may have: what a site claims weighs its messages", low=1
    )
    most_message: float = knob(256.0, "MiB of a message: larger ones are refused unread", above=0)
    insecure: bool = knob(False, "without TLS and keys of sites: for trials on one machine")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least > self.sites:
            raise SettingError(
                f"least must be at most the number of sites ({self.sites}), got {self.least}"
            )
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise SettingError(f"address must be host:port, got {self.address!r}")

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


@dataclass(frozen=True)
class Deployment:
    """What deployment.toml says."""

    plan: Plan
    data: dict[str, Any]  # the data contract
    terms: Terms = field(default_factory=Terms)

    def __post_init__(self) -> None:
        check_form(self.data)
        check_settings(self.plan.make_settings())
        if self.plan.task_options.get("weights"):
            raise SettingError("weights: a file of the server is not at the sites; leave it out")
        if model_specs(self.plan.model):
            raise SettingError(
                "model must be one for all sites of a deployment, by its name and its options "
                f"(--hidden 32), got {self.plan.model!r}; groups of clients with unlike models "
                "are for simulations"
            )
        method = self.plan.make_method()
        if method.traits.uses_public:
            raise SettingError(
                f"method must need no public inputs in a deployment, got {name_of(method)!r}: "
                "sites read their own data, and have none in common"
            )

    @property
    def run_plan(self) -> Plan:
        """The plan of its runs, as server and sites have it."""
        return replace(self.plan, settings={**self.plan.settings, "engine": FLOWER})

    @classmethod
    def read(cls, folder: Path) -> Deployment:
        """SettingError where there is none, or it is not one."""
        try:
            document = _read(folder / FILE, "directory", "deployment")
        except FileNotFoundError:
            raise SettingError(
                f"directory: {folder} holds no deployment ({FILE} is missing); "
                f"idiolect deploy init {folder}"
            ) from None
        terms = build(Terms, document["deployment"], "deployment")
        return cls(_plan(document), document["data"], terms)

    def write(self, folder: Path) -> None:
        """As `read` finds it."""
        sections = {"deployment": asdict(self.terms), **_sections(self.run_plan, self.data)}
        text = "# a federation of several sites; see docs/deploy.md\n\n" + toml_sections(sections)
        write_atomic(folder / FILE, text.encode())


@dataclass(frozen=True)
class Proposal:
    """What federation.toml says: where the server is, how it proves itself, what it proposes."""

    name: str
    address: str
    insecure: bool
    authority: str  # the certificate that the server's own is signed with (PEM); "" if insecure
    plan: Plan
    data: dict[str, Any]  # the data contract

    @classmethod
    def of(cls, deployment: Deployment, authority: str) -> Proposal:
        """What the sites of a deployment get."""
        terms, plan = deployment.terms, deployment.run_plan
        return cls(terms.name, terms.address, terms.insecure, authority, plan, deployment.data)

    @classmethod
    def read(cls, path: Path) -> Proposal:
        """SettingError where there is none, or it is not one."""
        try:
            document = _read(path, "federation", "federation")
        except FileNotFoundError:
            raise SettingError(
                f"federation: there is no file {path}; the server's operator has one ({FEDERATION})"
            ) from None
        own = document["federation"]
        try:
            expect_fields(own, {"name": str, "address": str, "insecure": bool, "authority": str})
        except ValueError as error:
            raise SettingError(f"federation: cannot use {path}: {error}") from None
        Terms(address=own["address"])
        check_form(document["data"])
        return cls(**own, plan=_plan(document), data=document["data"])

    @property
    def terms(self) -> FederationTerms:
        """What a site's owner agrees to."""
        return FederationTerms.of(self.name, self.plan, self.data)

    def write(self, path: Path) -> None:
        """As `read` finds it."""
        own = {
            "name": self.name,
            "address": self.address,
            "insecure": self.insecure,
            "authority": self.authority,
        }
        text = "# for every site of this federation: idiolect host agree federation.toml ...\n\n"
        sections = {"federation": own, **_sections(self.plan, self.data)}
        write_atomic(path, (text + toml_sections(sections)).encode())


@dataclass(frozen=True)
class FederationTerms:
    """What a federation is about: as its server proposes it, and as a site's owner agrees to it.

    Plain data, equal where they are equal as JSON.
    """

    federation: str  # its name
    plan: dict[str, Any]  # method, model, loss and run settings
    data: dict[str, Any]  # the data contract

    def __post_init__(self) -> None:
        if len(self.federation) > MOST_NAME:
            raise ValueError(f"federation must have at most {MOST_NAME} characters")
        check_form(self.data)

    @classmethod
    def of(cls, name: str, plan: Plan, data: dict[str, Any]) -> FederationTerms:
        own, form = json.loads(json.dumps([plan.as_dict(), data]))
        return cls(name, own, form)

    @property
    def asks_sums(self) -> bool:
        """Whether sites send counts and sums of their columns first."""
        return self.data.get("scale") == "federated"

    def allow(self, plan: dict[str, Any], seed: int, data: dict[str, Any]) -> bool:
        """Whether a run with this plan, seed and form of the data is within them."""
        form = agreed_form(self.data)
        prepared = "preparation" in data and data["preparation"] is not None
        settings = self.plan.get("settings", {})
        return (
            plan == self.plan
            and seed == settings.get("seed", Settings().seed)
            and prepared == self.asks_sums
            and {**data, "preparation": None} == {**form, "preparation": None}
        )


def _read(path: Path, field_name: str, first: str) -> dict[str, Any]:
    """The sections of a file, of which `first` is its own; SettingError where it has others."""
    try:
        with regular_file(path, field_name).open("rb") as file:
            body = file.read(MOST + 1)
        if len(body) > MOST:
            raise ValueError(f"at most {MOST} bytes")
        document = tomllib.loads(body.decode())
        sections = (first, "data", "method", "model", "run", "task")
        expect_fields(document, dict.fromkeys(sections, dict[str, Any]), sections[3:])
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise SettingError(f"{field_name}: cannot use {path}: {error}") from None
    return document


def _plan(document: dict[str, Any]) -> Plan:
    """The plan in the sections of a file."""
    method, model = dict(document["method"]), dict(document.get("model", {}))
    settings = dict(document.get("run", {}))
    return Plan(
        str(method.pop("name", "")),
        method,
        "",
        {},
        str(model.pop("name", "")),
        model,
        str(settings.pop("loss", "")),
        settings,
        dict(document.get("task", {})),
    )


def _sections(plan: Plan, data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The inverse, with the data contract."""
    loss = {"loss": plan.loss} if plan.loss else {}
    return {
        "data": data,
        "method": {"name": plan.method, **plan.method_fields},
        "model": {**({"name": plan.model} if plan.model else {}), **plan.model_options},
        "run": {**plan.run_settings, **loss},
        "task": plan.task_options,
    }


def agreed_form(data: dict[str, Any]) -> dict[str, Any]:
    """The data contract as sites agree to it: with a preparation in place of the kind of scale."""
    if data.get("kind") != TABLE:
        return dict(data)
    own = {name: value for name, value in data.items() if name not in ("scale", "kinds")}
    return {**own, "preparation": None}


def kinds_of_columns(data: dict[str, Any]) -> dict[str, str]:
    """What each feature of a table holds: numbers, unless the contract says otherwise."""
    features = data["features"]
    return dict(zip(features, data.get("kinds") or [NUMBER] * len(features), strict=True))


def check_form(data: dict[str, Any]) -> None:
    """Refuse a data contract that no site could keep."""
    try:
        read_form(agreed_form(data))
    except ValueError as error:
        raise SettingError(str(error)) from None
    if data["kind"] == TABLE:
        if data["target"] in data["features"]:
            raise SettingError(f"features: {data['target']!r} is the target; leave it out")
        if data.get("scale") not in SCALES:
            raise SettingError(
                "scale must be 'client' (each site by its own means) or 'federated' (all by the "
                f"means of all, from counts and sums), got {data.get('scale')!r}"
            )
        kinds = data.get("kinds", [NUMBER] * len(data["features"]))
        are_kinds = isinstance(kinds, list) and all(kind in KINDS for kind in kinds)
        if not are_kinds or len(kinds) != len(data["features"]):
            raise SettingError(
                f"kinds must be one of {', '.join(KINDS)} per feature, in their order, got {kinds}"
            )
        if len(data["classes"]) == 1:
            raise SettingError("classes must be two or more, or [] for values, got one")


def check_settings(settings: Settings) -> None:
    """Refuse run settings that make no sense where the data are with their owners."""
    default = Settings()
    reasons = refused_in(Settings, "deployment")
    if settings.engine not in ENGINES:
        reasons["engine"] = "Flower carries its messages"
    for name, why in reasons.items():
        if getattr(settings, name) != getattr(default, name):
            value = settings.as_dict()[name]
            raise SettingError(f"{name} must be left out in a deployment, got {value!r}: {why}")
    check_noise_is_given(settings)

"""Ray: hosts as actors on the machines of a cluster, one for each share of the clients.

An actor loads its clients' data, keeps their private rows and vectorises over them; the driver has
the server only. A killed actor is started again by Ray, takes its rows from disk and is sent the
calls of the round again (`engine.retry`). Ray runs any code that its driver sends: a cluster is one
trust domain.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from ...core.knobs import SettingError
from ...core.text import note
from ...host.service import HostRecipe, Service
from . import Carrier, EngineTraits, Place

SECONDS_TO_START = 300.0  # for all actors together: they import torch and load their data
SECONDS_IDLE = 15.0  # that actors without a host wait for the next run
NO_HOST = b"no host"  # the reply of an actor that has none


class RayCarrier(Carrier):
    """Frames to actors and back."""

    def __init__(self, recipes: Sequence[HostRecipe], place: Place):
        self.ray = connect(place)
        self.place = place
        _check_room(self.ray, place, recipes)
        self.recipes = [self.ray.put(recipe) for recipe in recipes]
        self.actors = start_actors(self.ray, self.recipes, place)
        self._under_way: dict[Any, tuple[int, int, bytes]] = {}  # reference -> ticket, host, frame
        self._tickets = 0
        self._all_well = True  # no actor was ever lost

    def send(self, host: int, frame: bytes) -> int:
        self._tickets += 1
        self._send(self._tickets, host, frame)
        return self._tickets

    def _send(self, ticket: int, host: int, frame: bytes) -> None:
        self._under_way[self.actors[host].handle.remote(frame)] = (ticket, host, frame)

    def receive(self, seconds: float) -> list[tuple[int, bytes | None]]:
        if not self._under_way:
            time.sleep(seconds)
            return []
        ready, late = self.ray.wait(list(self._under_way), num_returns=1, timeout=seconds)
        if late:
            ready = ready + self.ray.wait(late, num_returns=len(late), timeout=0)[0]
        replies = []
        for reference in ready:
            ticket, host, frame = self._under_way.pop(reference)
            reply = self._reply(reference)
            if reply == NO_HOST:  # restarted: it gets its recipe, then the frame
                self.actors[host].become.remote(self.recipes[host])
                self._send(ticket, host, frame)
            else:
                replies.append((ticket, reply))
        return replies

    def _reply(self, reference: Any) -> bytes | None:
        try:
            return self.ray.get(reference)
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError):
            self._all_well = False
            return None

    def close(self) -> None:
        """Actors that have nothing to do any more may serve the next run of this process."""
        for reference in self._under_way:
            self.ray.cancel(reference)
        idle = self._all_well and not self._under_way and self.ray.is_initialized()
        release_actors(self.ray, self.actors, self.place, idle)
        self.actors = []
        self.recipes = []
        self._under_way = {}


# -- actors ----------------------------------------------------------------------------------------
class HostActor:
    """A reusable actor that serves one host at a time."""

    def __init__(self) -> None:
        self.service: Service | None = None

    def become(self, recipe: HostRecipe | None) -> dict[str, str]:
        """A host, with its rows from disk; None: no host any more."""
        self.service = None
        if recipe is not None:
            self.service = recipe.service()
        return about()

    def handle(self, frame: bytes) -> bytes:
        return NO_HOST if self.service is None else self.service.handle(frame)

    def answer(self, question: Callable[[], Any]) -> Any:
        """What the driver wants to know about data that it does not have."""
        return question()

    def pid(self) -> int:
        return os.getpid()

    def node(self) -> str:
        """The machine it is on."""
        return str(module().get_runtime_context().get_node_id())


def about() -> dict[str, str]:
    """Versions that must be the same on all machines of a run."""
    return {name: version(name) for name in ("idiolect", "torch", "numpy")}


def start_actors(ray: Any, recipes: Sequence[Any], place: Place) -> list[Any]:
    """An actor per recipe, with its data and of the same code as this process.

    A recipe is a reference of Ray, or None: the actor has no host.
    """
    ours = about()
    actors = _take(ray, len(recipes), place)
    try:
        started = [a.become.remote(r) for a, r in zip(actors, recipes, strict=True)]
        versions = ray.get(started, timeout=SECONDS_TO_START)
        for number, theirs in enumerate(versions, 1):
            _check_same(ours, theirs, number)
    except BaseException as error:
        release_actors(ray, actors, place, idle=False)
        if isinstance(error, ray.exceptions.GetTimeoutError):
            raise SettingError(
                f"hosts: {len(actors)} did not start on the Ray cluster within "
                f"{SECONDS_TO_START:g} seconds; take fewer, or fewer cpus_per_host"
            ) from None
        raise _cause(ray, error) from None
    return actors


def _check_same(ours: dict[str, str], theirs: dict[str, str], number: int) -> None:
    for name, expected in ours.items():
        if theirs[name] != expected:
            raise SettingError(
                f"address: host {number} has {name} {theirs[name]}, and this process "
                f"{expected}; all machines of a run need the same"
            )


def _cause(ray: Any, error: BaseException) -> BaseException:
    """A setting that a host refuses is refused here in the same words."""
    if not isinstance(error, ray.exceptions.RayTaskError | ray.exceptions.RayActorError):
        return error
    cause = getattr(error, "cause", None)
    if isinstance(cause, SettingError):
        return SettingError(str(cause))
    return RuntimeError(f"a host did not start on the Ray cluster:\n{error}")


def ask(question: Callable[[], Any], place: Place) -> Any:
    """The answer of a process of the cluster, which may be a host afterwards."""
    ray = connect(place)
    _check_room(ray, place)
    (actor,) = start_actors(ray, [None], place)
    try:
        answer = ray.get(actor.answer.remote(question))
    except BaseException as error:
        ray.kill(actor)
        raise _cause(ray, error) from None
    release_actors(ray, [actor], place)
    return answer


# -- actors without a host, for the next run of this process ---------------------------------------
_idle: dict[tuple[str, Place], list[Any]] = {}  # by job of Ray and place
_timers: list[threading.Timer] = []


def release_actors(ray: Any, actors: Sequence[Any], place: Place, idle: bool = True) -> None:
    """Keep actors for a while, or end them: they hold CPUs of the cluster."""
    for actor in actors:
        if idle:
            actor.become.remote(None)
        else:
            ray.kill(actor)
    if idle:
        _idle.setdefault(_session(ray, place), []).extend(actors)
        timer = threading.Timer(SECONDS_IDLE, dismiss)
        timer.daemon = True
        timer.start()
        _timers.append(timer)


def dismiss() -> None:
    """End all idle actors."""
    ray = module()
    for actors in _idle.values():
        while actors:
            actor = actors.pop()
            if ray.is_initialized():
                ray.kill(actor)


def _session(ray: Any, place: Place) -> tuple[str, Place]:
    return ray.get_runtime_context().get_job_id(), place


def _take(ray: Any, count: int, place: Place) -> list[Any]:
    """Actors: idle ones first, then new ones."""
    while _timers:
        _timers.pop().cancel()
    idle = _idle.get(_session(ray, place), [])
    actors = [idle.pop() for _ in range(min(count, len(idle)))]
    dismiss()  # the others hold CPUs that new ones may need
    actor_class = ray.remote(HostActor).options(
        num_cpus=place.cpus,
        num_gpus=place.gpus,
        max_restarts=-1,
        max_task_retries=0,
        scheduling_strategy="SPREAD",
    )
    return [*actors, *(actor_class.remote() for _ in range(count - len(actors)))]


# -- the cluster -----------------------------------------------------------------------------------
def module() -> Any:
    """The package ray, or a message that says how to get it."""
    try:
        import ray
    except ImportError:
        raise SettingError(
            "engine: 'ray' needs the package ray, which is not installed; "
            "pip install 'idiolect[ray]'"
        ) from None
    return ray


def connect(place: Place) -> Any:
    """The package ray, connected to the cluster, or to one that is started here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns about it
    if not place.address:
        os.environ.setdefault("RAY_worker_niceness", "0")  # hosts are the work, as threads here are
        _protect()
    ray = module()
    if ray.is_initialized():
        return ray
    quiet = {"log_to_driver": False, "configure_logging": True, "logging_level": "ERROR"}
    if not place.address:
        ray.init(address="local", include_dashboard=False, **quiet)
        return ray
    try:
        _check_answers(place.address)
        ray.init(address=place.address, **quiet)
    except (OSError, ValueError) as error:
        raise SettingError(
            f"address: no Ray cluster answers at {place.address!r} ({_line(error)}); "
            "'HOST:PORT' of `ray start --head`, 'auto' on one of its machines, or '' to start one"
        ) from None
    except RuntimeError as error:
        raise SettingError(
            f"address: the Ray cluster at {place.address!r} cannot be used ({_line(error)})"
        ) from None
    return ray


def _check_answers(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=5.0).close()


def _protect() -> None:
    """Nobody without a new token gets into the cluster that is started here.

    Ray reads the mode when it is imported.
    """
    if "ray" in sys.modules:
        if os.environ.get("RAY_AUTH_MODE") != "token":
            note(
                "ray: it was imported before idiolect could switch its token authentication on; "
                "whoever reaches its ports can use it. Set RAY_AUTH_MODE=token first"
            )
        return
    if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token":
        variables = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
        if not any(name in os.environ for name in variables):
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


def _check_room(ray: Any, place: Place, recipes: Sequence[HostRecipe] = ()) -> None:
    """Refuse hosts that the cluster could never hold: those of these recipes, or one."""
    has = ray.cluster_resources()
    hosts = len(recipes) or 1
    for name, each in (("CPU", place.cpus), ("GPU", place.gpus)):
        room = has.get(name, 0.0)
        if each * hosts > room:
            changes = [
                *_fewer(recipes),
                f"{name.lower()}s_per_host of at most {_most(room, hosts)}",
            ]
            raise SettingError(
                f"hosts: {hosts} with {each:g} {name}s each need {each * hosts:g}, and the Ray "
                f"cluster has {room:g}{_who(recipes)}; take {' or '.join(changes)}"
            )


def _who(recipes: Sequence[HostRecipe]) -> str:
    """Why there are more hosts than the setting says: what each of them is for."""
    reasons = []
    groups = max((len(recipe.contract.layouts) for recipe in recipes), default=0)
    if groups:
        reasons.append(f"a host has clients of one of the {groups} groups with unlike models")
    if malicious := sum("attack" in recipe.options for recipe in recipes):
        reasons.append(
            f"{malicious} of them {'is' if malicious == 1 else 'are'} for malicious clients"
        )
    return "".join(f"; {reason}" for reason in reasons)


def _fewer(recipes: Sequence[HostRecipe]) -> list[str]:
    """Which numbers could be smaller, so that there are fewer hosts."""
    honest = [id(recipe.contract) for recipe in recipes if "attack" not in recipe.options]
    names = ["a smaller `hosts`"] if len(set(honest)) < len(honest) else []
    return names + (["fewer groups"] if len(set(honest)) > 1 else [])


def _most(room: float, hosts: int) -> str:
    """The most that each host may have; Ray takes parts of one, and whole numbers above it."""
    each = room / hosts
    return f"{math.floor(each) if each >= 1 else math.floor(100 * each) / 100:g}"


ENGINE = EngineTraits("on a Ray cluster", RayCarrier, ask=ask, cluster=True)

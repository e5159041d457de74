"""Hosts behind frames in this process: what Ray and Flower carry, without them."""

from collections import deque
from collections.abc import Callable, Sequence

from idiolect.engine.carriers import Carrier
from idiolect.engine.carriers.local import LocalHosts
from idiolect.engine.remote_hosts import RemoteHosts
from idiolect.engine.retry import HostCalls
from idiolect.engine.rounds import Rounds
from idiolect.host.service import Service


class Loopback(Carrier):
    """Every frame is answered when replies are asked for; `lose` says which replies are lost."""

    def __init__(
        self, services: Sequence[Service], lose: Callable[[int, bytes], bool] | None = None
    ):
        self.services = list(services)
        self.lose = lose or (lambda host, frame: False)
        self.sent: deque[tuple[int, int, bytes]] = deque()
        self.tickets = 0
        self.frames: list[tuple[int, bytes, bytes]] = []  # host, request, reply

    def send(self, host, frame):
        self.tickets += 1
        self.sent.append((self.tickets, host, frame))
        return self.tickets

    def receive(self, seconds):
        found = []
        while self.sent:
            ticket, host, frame = self.sent.popleft()
            if self.lose(host, frame):
                found.append((ticket, None))
                continue
            reply = self.services[host].handle(frame)
            self.frames.append((host, frame, reply))
            found.append((ticket, reply))
        return found


def local_rounds(server, hosts, delays=None) -> Rounds:
    """Rounds with hosts of this process."""
    return Rounds(server, LocalHosts(hosts), delays)


def remote_rounds(server, hosts, carrier, **options) -> Rounds:
    """Rounds with hosts behind a carrier."""
    strict = options.pop("strict", True)
    delays = options.pop("delays", None)
    counters = server.contract.method.traits.counters
    group = RemoteHosts(hosts, HostCalls(carrier, strict=strict), counters, **options)
    return Rounds(server, group, delays)


def remote(server, hosts, **options) -> Rounds:
    """Rounds with hosts behind frames."""
    return remote_rounds(server, hosts, Loopback([Service(h) for h in hosts]), **options)

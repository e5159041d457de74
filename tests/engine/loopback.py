"""Hosts behind frames in this process: what Ray and Flower carry, without them."""

from collections import deque
from collections.abc import Callable, Sequence

from idiolect.engine.retry import Carrier
from idiolect.engine.rounds import Remote
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


def remote(server, hosts, **options) -> Remote:
    """An engine whose hosts are behind frames."""
    return Remote(server, hosts, Loopback([Service(h) for h in hosts]), **options)

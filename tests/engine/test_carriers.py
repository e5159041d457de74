"""Local hosts, and hosts behind the frames of worker processes, do what every engine must."""

from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from engine.engine_suite import EngineSuite
from engine.loopback import Loopback, local_rounds, remote_rounds
from idiolect.engine import carriers
from idiolect.engine.carriers.processes import ProcessCarrier
from idiolect.host.service import Service
from idiolect.run.settings import Settings


class TestLocal(EngineSuite):
    @pytest.fixture
    def build(self):
        return local_rounds


@dataclass(frozen=True)
class EchoRecipe:
    """A process that sends every frame back."""

    def service(self):
        return self

    def handle(self, frame):
        return frame


class ThroughProcess(Loopback):
    """Hosts of this process, behind frames that a pipe carries to another one and back."""

    def __init__(self, services, echo):
        super().__init__(services)
        self.echo = echo

    def pass_on(self, frame):
        ticket = self.echo.send(0, frame)
        ((answered, reply),) = self.echo.receive(60.0)
        assert answered == ticket
        return reply

    def send(self, host, frame):
        return super().send(host, self.pass_on(frame))

    def receive(self, seconds):
        return [(ticket, self.pass_on(reply)) for ticket, reply in super().receive(seconds)]


@pytest.fixture(scope="module")
def echo():
    carrier = ProcessCarrier([EchoRecipe()])
    yield carrier
    carrier.close()


class TestProcesses(EngineSuite):
    test_several_hosts_are_one = None  # slow; whole runs are compared in tests/run/test_processes

    @pytest.fixture
    def build(self, echo):
        def build(server, hosts, **options):
            carrier = ThroughProcess([Service(h) for h in hosts], echo)
            return remote_rounds(server, hosts, carrier, **options)

        return build


def test_a_process_that_ends_by_itself_is_named(echo):
    carrier = ProcessCarrier([EchoRecipe(), EchoRecipe()])
    carrier._processes[1].kill()
    carrier._processes[1].join()
    with pytest.raises(RuntimeError, match=r"worker process 2 of 2 has ended .*exit code -9"):
        carrier.send(1, b"frame")
        carrier.receive(5.0)
    carrier.close()


@dataclass(frozen=True)
class BrokenRecipe:
    def service(self):
        raise ValueError("no such data")


def test_a_process_that_cannot_start_says_why():
    with pytest.raises(RuntimeError, match="worker process 1 did not start:\nValueError: no such"):
        ProcessCarrier([BrokenRecipe()])


def test_large_frames_in_both_directions_do_not_block_each_other(echo):
    frame = bytes(4 << 20)
    tickets = [echo.send(0, frame) for _ in range(5)]
    replies = []
    while len(replies) < 5:
        replies += echo.receive(60.0)
    assert [ticket for ticket, _ in replies] == tickets
    assert all(reply == frame for _, reply in replies)


def test_a_file_in_the_folder_of_carriers_is_an_engine_that_users_can_choose():
    files = {path.stem for path in Path(carriers.__file__).parent.glob("*.py")} - {"__init__"}
    assert set(carriers.ENGINES) == files
    (engine,) = [field for field in fields(Settings) if field.name == "engine"]
    for name, traits in carriers.ENGINES.items():
        assert f"{traits.where} ({name})" in str(engine.metadata)

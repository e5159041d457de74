"""A worker process: one host, orders in, messages out, each as a line of JSON and plain bytes."""

from __future__ import annotations

import json
import signal
import traceback
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import torch

from ..host.host import Host
from ..server.protocol import RoundConclusion, RoundRequest

Head = dict[str, Any]
Recipe = tuple[type[Host], tuple[Any, ...], dict[str, Any]]


def send(pipe: Connection, head: Head, body: bytes = b"") -> None:
    """One thing said: what it is, as JSON, and its bytes."""
    pipe.send_bytes(json.dumps(head).encode())
    pipe.send_bytes(body)


def receive(pipe: Connection) -> tuple[Head, bytes]:
    """The next thing said."""
    return json.loads(pipe.recv_bytes()), pipe.recv_bytes()


def work(pipe: Connection, recipe: Recipe, folder: str, threads: int) -> None:
    """Work off orders until told to stop, or until the run has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which then stops this
    torch.set_num_threads(threads)
    try:
        made, arguments, options = recipe
        host = made(*arguments, **options)
        host.load(Path(folder))
        send(pipe, {"kind": "ready"})
        _serve(pipe, host)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the run is gone
    except Exception:
        try:
            send(pipe, {"kind": "error", "text": traceback.format_exc()})
        except OSError:
            return


def _listen(pipe: Connection, said: Queue[tuple[Head, bytes]]) -> None:
    """Take in what is said at once: two sides that both speak must not wait for each other."""
    try:
        while True:
            said.put(receive(pipe))
    except (EOFError, OSError):
        said.put(({"kind": "stop"}, b""))  # the run is gone


def _serve(pipe: Connection, host: Host) -> None:
    said: Queue[tuple[Head, bytes]] = Queue()
    Thread(target=_listen, args=(pipe, said), daemon=True).start()
    orders: deque[tuple[Head, bytes]] = deque()
    assert host.at_work is not None
    while True:
        while not orders or not said.empty():  # all else comes before the next order
            head, body = said.get()
            if head["kind"] == "stop":
                return
            if head["kind"] == "order":
                orders.append((head, body))
            elif head["kind"] == "save":
                host.save(Path(head["folder"]))
                send(pipe, {"kind": "saved"})
            else:
                client = torch.tensor([head["client"]])
                nobody = client[:0]
                counted = (client, nobody) if head["counted"] else (nobody, client)
                host.at_work.arrived(RoundConclusion(head["version"], *counted, {}))
        head, body = orders.popleft()
        client = torch.tensor([head["client"]])
        turns = torch.tensor([head["turn"]])
        order = RoundRequest(head["version"], body, client, client, head["factors"], turns)
        sent = host.at_work.begin([order])
        told = {
            "kind": "sent",
            "client": head["client"],
            "gradients": int(sent.gradients.sum()),
            "values": float(sent.values.sum()),
            "counted": {n: int(t.sum()) for n, t in sent.counted.items()},
        }
        send(pipe, told, sent.messages.row(0) if len(sent.messages) else b"")

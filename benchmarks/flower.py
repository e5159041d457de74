"""FedAvg in Flower's simulation: Ray back end, one actor with one CPU and one thread.

A client trains by indexing, not through a DataLoader. The server evaluates the averaged model on
the pooled test data: in Flower that is faster than 100 evaluation messages. Ray's actor is another
process, so rounds are timed by the wall clock; the server and Ray's daemons may use a second core.
"""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .loop import Indexed
from .peers import Marks
from .workloads import WORKLOADS, Workload

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
RAY = {
    "init_args": {"num_cpus": 1, "num_gpus": 0, "log_to_driver": False},
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
}


def arrays(module: nn.Module) -> list[np.ndarray]:
    return [p.detach().numpy().copy() for p in module.parameters()]


def load(module: nn.Module, values: list[np.ndarray]) -> None:
    with torch.no_grad():
        for p, value in zip(module.parameters(), values, strict=True):
            p.copy_(torch.from_numpy(value))


@lru_cache
def module_of(key: str) -> nn.Module:
    """One module per process: clients of an actor share it."""
    torch.set_num_threads(1)
    return WORKLOADS[key].module()


def fit(key: str, client: int, received: list[np.ndarray]) -> tuple[list[np.ndarray], int, dict]:
    work = WORKLOADS[key]
    module = module_of(key)
    data = work.data()
    load(module, received)
    optimiser = torch.optim.SGD(module.parameters(), work.method.lr)
    for x, y in Indexed(
        data.train_inputs[client], data.train_targets[client], work.batch, shuffle=True
    ):
        optimiser.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimiser.step()
    return arrays(module), work.train, {}


@torch.no_grad()
def evaluate(work: Workload, module: nn.Module) -> tuple[float, float]:  # -> accuracy, loss
    data = work.data()
    hits = loss = samples = 0
    for x, y in Indexed(data.test_inputs.flatten(0, 1), data.test_targets.flatten(), 1024):
        out = module(x)
        hits += (out.argmax(1) == y).sum().item()
        samples += len(y)
        loss += F.cross_entropy(out, y, reduction="sum").item()
    return hits / samples, loss / samples


def main(key: str, rounds: int) -> None:
    os.environ.update(QUIET, FLWR_HOME=tempfile.mkdtemp(prefix="flower-"))
    from flwr.client import ClientApp, NumPyClient
    from flwr.common import Context, ndarrays_to_parameters
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    work = WORKLOADS[key]
    marks = Marks()

    def client(context: Context):
        class Client(NumPyClient):
            def fit(self, parameters, config):
                return fit(key, int(context.node_config["partition-id"]), parameters)

        return Client().to_client()

    def central(round: int, parameters: list[np.ndarray], config: dict):
        load(module_of(key), parameters)
        accuracy, loss = evaluate(work, module_of(key))
        marks.add(accuracy, loss)
        return loss, {"accuracy": accuracy}

    def server(context: Context) -> ServerAppComponents:
        strategy = FedAvg(
            fraction_fit=work.heard / work.clients,
            fraction_evaluate=0.0,
            min_available_clients=work.clients,
            evaluate_fn=central,
            initial_parameters=ndarrays_to_parameters(arrays(module_of(key))),
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

    run_simulation(
        ServerApp(server_fn=server),
        ClientApp(client_fn=client),
        num_supernodes=work.clients,
        backend_config=RAY,
    )
    marks.write()

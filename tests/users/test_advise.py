"""A user's question: should my sites learn together at all?"""

import numpy as np
import pandas as pd
import torch

import idiolect as il

QUICK = {"quick": True, "gradients": 30, "progress": False, "threads": 1}


class Net(torch.nn.Module):
    """A module of the user's own, with two inputs."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.second = torch.nn.Linear(3, 8)
        self.out = torch.nn.Linear(8, 2)

    def forward(self, labs, vitals):
        return self.out(torch.relu(self.first(labs) + self.second(vitals)))


def test_a_module_with_two_inputs_and_clients_with_names():
    rng = np.random.default_rng(0)
    labs, vitals = rng.normal(size=(160, 4)), rng.normal(size=(160, 3))
    sites = np.repeat(["Aachen", "Basel", "Zürich", "Łódź"], 40)
    f = il.Federation.from_arrays((labs, vitals), (labs[:, 0] > 0).astype(int), sites)
    advice = il.advise(f, Net, ["ditto"], **QUICK)
    named = [client for clients in advice.gains.values() for client in clients]
    assert sorted(named) == sorted(set(sites)) and all(type(n) is str for n in named)
    assert advice.choice in ("local", "fedavg", "ditto", "undecided")
    assert len(advice.words) >= 4 and advice.words[0] in str(advice).replace("\n", " ")


def test_a_table_with_real_targets_and_clients_that_are_numbers():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.normal(60, 12, 120), "bmi": rng.normal(25, 4, 120)})
    table["ward"] = rng.choice([3, 7, 11], 120)
    table["days"] = 0.1 * table.age + rng.normal(0, 1, 120)
    f = il.Federation.from_frame(table, client="ward", target="days", kind="values")
    advice = il.advise(f, lambda: torch.nn.Linear(2, 1), ["finetune"], **QUICK)
    assert advice.metric == "loss" and {c.client for c in advice.clients} == {3, 7, 11}


def test_an_unsupervised_model_is_judged_by_its_loss():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 5)).astype(np.float32)
    f = il.Federation.from_arrays(x, x, np.repeat(np.arange(6), 20), valid=0.3)
    auto = torch.nn.Sequential(torch.nn.Linear(5, 2), torch.nn.Linear(2, 5))
    advice = il.advise(f, il.Task(auto, "mse"), ["ditto"], **QUICK)
    assert advice.metric == "loss" and advice.table


def test_a_method_of_ones_own_is_a_candidate():
    class Timid(il.FedAvg):
        """FedAvg with a name of its own."""

    f = il.data.load("synthetic", clients=4, samples=60)
    advice = il.advise(f, torch.nn.Linear(60, 10), [Timid(lr=0.05)], **QUICK)
    assert [row["method"] for row in advice.table[:3]] == ["local", "fedavg", "Timid"]

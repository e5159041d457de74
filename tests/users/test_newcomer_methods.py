"""Six methods that a user writes by the docs alone: short, exact, with the same bits on any hosts.

Each against its plain NumPy reference in float64, on the small federation of the references; the
table of docs/add-a-method.md is made of what is measured here.
"""

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.structure import code_lines

import idiolect as il
from idiolect.testing import check_method
from methods.common import Case, N, fedavg_reference
from papers.test_public_api import imports, is_public
from reference import cfl, fedamp, fedproto, fedrod, knnper, pfedhn, setting
from reference.setting import SEED, assert_same, outcome
from users import newcomer_methods

PAGE = Path(__file__).parents[2] / "docs" / "add-a-method.md"
METHODS = {
    "FedAMP": newcomer_methods.FedAmp(),
    "FedProto": newcomer_methods.FedProto(),
    "pFedHN": newcomer_methods.PFedHn(),
    "kNN-Per": newcomer_methods.KnnPer(lr=0.3, steps=4),
    "CFL": newcomer_methods.Cfl(lr=0.3, steps=4),
    "FedROD": newcomer_methods.FedRod(),
}
HELPERS = {  # functions and classes beside the method's own
    "FedProto": ("head", "by_class"),
    "CFL": ("smaller_half",),
    "FedROD": ("head", "TwoHeads"),
}
every_method = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(scope="module")
def federation():
    return setting.make_federation()


def task():
    return setting.task("network")


def run(name, federation, **settings):
    return setting.run(METHODS[name], federation, "network", **settings)


# -- what each plain loop says of a run of the class ----------------------------------------------
def fields(name, *names):
    return {field: getattr(METHODS[name], field) for field in names}


def expected_fedamp(case, federation):
    own = fields("FedAMP", "lr", "steps", "lam", "share", "sigma")
    found = fedamp.fedamp(*case.first, **own, attention="distance")
    return {"rows w": found["rows models"], "personal": found["personal"]}


def expected_fedproto(case, federation):
    own = fields("FedProto", "lr", "lam")
    found = fedproto.fedproto(*case.first, steps=[4] * N, **own)
    return {
        "server sums": found["server prototypes"],
        "server shares": found["server known"],
        "personal": found["personal"],
    }


def expected_pfedhn(case, federation):
    method = METHODS["pFedHN"]
    bound = task().under(seed=SEED, dtype=torch.float64)
    phi = method.server(bound)["phi"].numpy()
    v = method.server_rows(bound, case.draws.keys)["v"].numpy()
    sizes = [method.embedding, method.hidden, method.hidden, bound.d]
    own = fields("pFedHN", "lr", "steps", "hyper_lr")
    first = (case.model, case.data, phi, v, sizes, case.cohorts, case.batches)
    found = pfedhn.pfedhn(*first, **own)
    return {name: found[name] for name in ("server phi", "rows v", "personal")}


def expected_knnper(case, federation):
    method = METHODS["kNN-Per"]
    w = fedavg_reference(federation, model="network")["server w"]
    options = {"lam": method.lam, "k": method.neighbours, "sigma": method.scale}
    inputs = np.eye(setting.FEATURES)
    answers = [knnper.knn_per(case.model, w, memory, inputs, **options) for memory in case.data]
    return {"server w": w, "personal": np.log(answers).reshape(N, -1)}


def expected_cfl(case, federation):
    own = fields("CFL", "lr", "steps", "weighting", "eps1", "eps2") | {"gamma": 0.0, "most": 4}
    everyone = Case(federation, "network", sample=N)
    found = cfl.cfl(*everyone.first, **own)
    assert len(np.unique(found["rows group"])) > 1
    return {name: found[name] for name in ("server models", "rows group", "personal")}


def expected_fedrod(case, federation):
    own = fields("FedROD", "lr", "personal_lr")
    found = fedrod.fedrod(*case.first, steps=[4] * N, **own)
    w, heads = found["server w"], found["private head"]
    return {
        "server theta": w,
        "private head": heads,
        "personal": [np.concatenate([w, head]) for head in heads],
    }


EXPECTED = {
    "FedAMP": expected_fedamp,
    "FedProto": expected_fedproto,
    "pFedHN": expected_pfedhn,
    "kNN-Per": expected_knnper,
    "CFL": expected_cfl,
    "FedROD": expected_fedrod,
}


def difference(name, federation):
    """The largest difference of any number from the plain loop."""
    expected = EXPECTED[name](Case(federation, "network"), federation)
    left = outcome(run(name, federation))
    return assert_same({part: left[part] for part in expected}, expected, 1e-10)


def lines(name):
    """Lines of code: the class and what it needs beside it, without imports."""
    objects = [type(METHODS[name]), *(getattr(newcomer_methods, n) for n in HELPERS.get(name, ()))]
    return sum(code_lines(inspect.getsource(thing)) for thing in objects)


# -- the trial ------------------------------------------------------------------------------------
def test_they_are_written_with_public_names_only():
    path = Path(newcomer_methods.__file__)
    used = list(imports(path))
    own = [(module, name) for module, name in used if module.partition(".")[0] == "idiolect"]
    assert own and all(is_public(module, name) for module, name in own)
    private = [
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and node.attr[:2] != "__"
    ]
    assert private == []


@every_method
def test_each_is_its_plain_loop(name, federation):
    assert difference(name, federation) <= 1e-10


@every_method
def test_each_leaves_the_same_bits_on_one_and_on_three_hosts(name, federation):
    alone, shared = (outcome(run(name, federation, hosts=hosts)) for hosts in (1, 3))
    assert_same(alone, shared)


@every_method
def test_each_passes_the_checks_on_its_users_task_and_data(name, federation):
    check_method(METHODS[name], task(), federation)


# -- the table of the page -----------------------------------------------------------------------
ROW = re.compile(r"^\| (\S+) \| (\d+) \| (\S+) \| the same \|$", re.MULTILINE)


def test_the_page_has_their_lines_and_differences(federation):
    rows = {name: (int(n), float(gap)) for name, n, gap in ROW.findall(PAGE.read_text("utf-8"))}
    assert {name: n for name, (n, _) in rows.items()} == {name: lines(name) for name in METHODS}
    assert all(gap <= 1e-10 for _, gap in rows.values())


# -- mistakes that they may make, and what they are told -----------------------------------------
def broken(base=il.FedAvg, **functions):
    return type("Mine", (base,), functions)()


def lone_model(self, task, down, private, here):
    return {"w": il.solvers.sgd(task, down["w"], here, self.lr, 2)}, private


def message_alone(self, task, down, private, here):
    return {"w": down["w"]}


def own_rows(self, task, clients):
    return {"v": task.x0.repeat(len(clients), 1)}


def forgets_rows(self, task, down, private, here):
    return il.FedAvg.update(self, task, down, private, here)[0], {}


def one_for_all(self, task, server, clients):
    return {"u": task.x0}


MISTAKES = {
    "update must send the parts that message declares": broken(
        newcomer_methods.PFedHn, message=il.Method.message
    ),
    "update must return a pair, (message up, new private rows), got dict": broken(
        update=message_alone
    ),
    "update must return private rows of the same names as private, v, got none": broken(
        newcomer_methods.KnnPer, private=own_rows, update=forgets_rows
    ),
    "x must be rows [K, d], a model for each client": broken(update=lone_model),
    "server_rows must keep other parts than server, got 'w' from both": broken(
        newcomer_methods.FedAmp, server=il.Method.server
    ),
    "address must return a row for each client, [K, ...], got 'u' of shape": broken(
        newcomer_methods.FedAmp, address=one_for_all
    ),
    "Mine must be decorated with @dataclass(frozen=True): without it share is no field": None,
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_refused_in_words(words, federation):
    with pytest.raises(il.SettingError, match=re.escape(words)):
        setting.run(MISTAKES[words] or broken(share=il.knob(0.5, "a share")), federation)


def test_rows_without_predict_are_refused(federation):
    method = broken(newcomer_methods.KnnPer, predict=il.Method.predict)
    with pytest.raises(NotImplementedError, match="must define predict, because personal returned"):
        setting.run(method, federation)

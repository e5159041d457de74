"""Sites and their server count the same positive class."""

from dataclasses import replace

import pytest

from deploy.test_server_sums import SETTINGS, deployment, sites
from engine.stand_in import Wires
from idiolect.core.knobs import SettingError
from idiolect.deploy.server import serve
from idiolect.deploy.site.rules import Rules
from idiolect.run.plan import Plan


def deployed(tmp_path, classes=None, **settings):
    planned = deployment()
    plan = Plan("fedavg", {}, "", settings={**SETTINGS, **settings})
    data = {**planned.data, "classes": classes or planned.data["classes"]}
    planned = replace(planned, plan=plan, data=data)
    tmp_path.mkdir(exist_ok=True)
    parties = sites(tmp_path)
    for site in parties.values():
        site.rules = Rules(metrics=f"accuracy,loss,{settings['metrics']}")
    return serve(Wires(parties), planned, tmp_path / "run", tell=lambda text: None)


def test_sites_and_server_count_the_class_that_is_known_by_its_name_or_set(tmp_path):
    known = deployed(tmp_path / "known", metrics="specificity,recall")
    chosen = deployed(tmp_path / "set", metrics="specificity,recall", positive="n")
    of_y, of_n = known.summary()["metrics"], chosen.summary()["metrics"]
    assert of_y["recall"]["positive"] == {"class": "y", "reason": "by its name"}
    assert of_n["recall"]["positive"] == {"class": "n", "reason": "as set"}
    # what is found of one class is what is spared of the other: at the server, and at every site
    assert of_y["recall"]["mean"] == of_n["specificity"]["mean"] > of_n["recall"]["mean"]
    for row, other in zip(known.clients_table(), chosen.clients_table(), strict=True):
        assert row["test_recall"] == other["test_specificity"]
        assert row["test_specificity"] == other["test_recall"]


def test_labels_that_do_not_tell_are_refused_before_any_site_is_waited_for(tmp_path):
    with pytest.raises(SettingError, match="positive must name the class that f1 is about"):
        deployed(tmp_path, classes=["apple", "pear"], metrics="f1,auc")
    with pytest.raises(SettingError, match="one of the classes 'n', 'y', got 'maybe'"):
        deployed(tmp_path, metrics="f1", positive="maybe")

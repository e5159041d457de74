"""The owner's table under an agreement: what fits, what is refused, and that no value is told."""

import numpy as np
import pandas as pd
import pytest
import torch

from deploy.site.common import form, table, with_table
from deploy.sites import agreement, plan_of
from idiolect.core.knobs import SettingError
from idiolect.data.federation import Federation
from idiolect.data.prepare.federated import combine, means
from idiolect.deploy.site.data import UNFIT, SiteData
from idiolect.host.calls import Call

PLAN = plan_of("fedavg")


def refusal(at, **changes) -> str:
    return at.refusal(agreement(PLAN, form(**changes)))


def test_a_site_prepares_by_its_own_numbers_where_no_preparation_is_agreed(tmp_path):
    frame = table()
    at = with_table(tmp_path / "s", frame)
    assert at.ask(agreement(PLAN, form())).kind == "census"
    made = at.site.agreed.federation
    train = made.part(0, "train")[0]
    assert torch.allclose(train.mean(0), torch.zeros(2), atol=1e-5)
    assert torch.allclose(train.std(0, correction=0), torch.ones(2), atol=1e-5)
    assert made.class_names == ("no", "yes")


def test_classes_have_the_agreed_numbers(tmp_path):
    at = with_table(tmp_path / "s", table())
    at.ask(agreement(PLAN, form(classes=["yes", "perhaps", "no"])))
    made = at.site.agreed.federation
    assert made.classes == 3 and made.class_names == ("yes", "perhaps", "no")
    assert set(made.targets.tolist()) == {0, 2}


def test_a_regression_has_no_classes(tmp_path):
    at = with_table(tmp_path / "s", table(), rules={"metrics": "loss,rmse,r2"})
    census = at.ask(agreement(PLAN, form(features=["age"], classes=[], target="bp")))
    assert census.facts["classes"] == 0


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"features": ["age", "weight"]}, "column 'weight' is not in this site's table"),
        ({"target": "sick"}, "column 'sick' is not in this site's table"),
        ({"features": ["age", "ill"]}, "column 'ill' is no feature at this site"),
        ({"features": []}, "features must be one or more columns"),
        ({"features": ["age", "age"]}, "each named once"),
        ({"preparation": {"columns": 3}}, "preparation: it cannot be used"),
        ({"classes": ["no", "yes", "no"]}, "classes must be at most 65536, each named once"),
    ],
)
def test_what_does_not_fit_by_its_names_is_named(tmp_path, changes, reason):
    at = with_table(tmp_path / "s", table())
    assert reason in refusal(at, **changes)
    assert not at.site.usage.questions


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"features": ["age", "sex"]}, "column 'sex' holds categories"),
        ({"classes": ["no", "maybe"]}, "holds classes that are not among the 2 agreed"),
        ({"classes": [], "target": "ill"}, "numbers"),
    ],
)
def test_what_does_not_fit_by_its_values_is_told_to_the_owner_alone(tmp_path, changes, reason):
    at = with_table(tmp_path / "s", table())
    assert refusal(at, **changes) == UNFIT
    assert reason in at.told[-1]
    assert len(at.site.usage.questions) == 1
    assert UNFIT in at.log()[-1]["verdict"] and reason not in at.log()[-1]["verdict"]


def test_what_the_owner_keeps_is_no_feature(tmp_path):
    at = with_table(tmp_path / "s", table(), client="ward", drop="bp", target="ill")
    assert "'bp' is no feature at this site" in refusal(at)
    assert "'ward' is no feature" in refusal(at, features=["age", "ward"])
    assert "this site's owner allows another" in refusal(at, features=["age"], target="sex")
    only = with_table(tmp_path / "t", table(), features="age")
    assert "'bp' is no feature at this site" in refusal(only)
    assert only.ask(agreement(PLAN, form(features=["age"]))).kind == "census"


def test_values_of_rows_are_told_to_the_owner_alone(tmp_path):
    frame = table()
    frame["age"] = frame["age"].astype(object)
    frame.loc[7, "age"] = "John Smith"
    at = with_table(tmp_path / "s", frame)
    reason = refusal(at)
    assert reason == UNFIT
    assert any("John Smith" in line for line in at.told)


def test_missing_values_are_the_owners_choice(tmp_path):
    frame = table()
    frame.loc[3, "age"] = np.nan
    assert refusal(with_table(tmp_path / "s", frame)) == UNFIT
    at = with_table(tmp_path / "t", frame, missing="mean")
    assert at.ask(agreement(PLAN, form())).kind == "census"


def test_a_site_with_a_table_has_no_arrays(tmp_path):
    at = with_table(tmp_path / "s", table())
    call = agreement(PLAN, {"kind": "array", "inputs": ["torch.float32", [2]], "classes": 2})
    assert "arrays are asked for" in at.refusal(call)


def test_data_that_cannot_be_read_end_the_start(tmp_path):
    with pytest.raises(SettingError, match="there is no file"):
        SiteData("north", "table", {"path": str(tmp_path / "none.csv")}).check()
    with pytest.raises(SettingError, match="target: column 'sick' is not in"):
        with_table(tmp_path / "s", table(), target="sick").owned.check()
    with pytest.raises(SettingError, match="share must be k/n"):
        SiteData("north", "synthetic", {"clients": 6, "samples": 60}, "4/3").check()


def test_parts_of_a_data_set_are_all_of_it():
    parts = [SiteData("s", "synthetic", {"clients": 7, "samples": 60}, f"{k}/3") for k in (1, 2, 3)]
    assert [p.loaded.clients for p in parts] == [3, 2, 2]
    assert len({name for p in parts for name in p.loaded.names}) == 7


# -- one preparation for all sites -----------------------------------------------------------------
def sums(number: int, features, **more) -> Call:
    data = {"target": "ill", "features": list(features)}
    return Call("sums", {"pass": number, "data": data, "missing": "refuse", **more})


def test_sums_of_two_sites_scale_as_one_table_would(tmp_path):
    features = ["age", "bp", "sex"]
    frames = [table(80, 1), table(60, 2)]
    sites = [with_table(tmp_path / f"s{k}", f) for k, f in enumerate(frames)]
    first = [at.ask(sums(1, features)).facts["columns"] for at in sites]
    told = means(first)
    second = [at.ask(sums(2, features, means=told)).facts["columns"] for at in sites]
    made = combine(features, first, second)
    for at in sites:
        call = agreement(PLAN, form(features=features, preparation=made.as_dict()))
        assert at.ask(call).facts["inputs"] == [["torch.float32", [4]]]
    whole = pd.concat([f.assign(site=f"s{k}") for k, f in enumerate(frames)])
    split = [at.site.agreed.federation for at in sites]
    together = torch.cat([f.part(0, "train")[0] for f in split])
    assert torch.allclose(together[:, :2].mean(0), torch.zeros(2), atol=1e-5)
    assert torch.allclose(together[:, :2].std(0, correction=0), torch.ones(2), atol=1e-5)
    alike = Federation.from_frame(
        whole, client="site", target="ill", features=features, valid=0, test=0
    )
    assert alike.preparation.columns[2].categories == made.columns[2].categories


def test_sums_are_of_training_rows_and_no_row_alone(tmp_path):
    frame = table(100)
    frame["part"] = ["train"] * 50 + ["test"] * 50
    at = with_table(tmp_path / "s", frame, split="part")
    column = at.ask(sums(1, ["age"])).facts["columns"]["age"]
    assert column["count"] == 50 and column["sum"] == pytest.approx(frame["age"][:50].sum())
    assert set(column) == {"kind", "count", "sum", "missing"}


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"pass": 3}, "pass must be 1, or 2"),
        ({"pass": "1"}, "pass must be a whole number, got a text"),
        ({"data": {"target": "ill"}}, "'features' in data is missing"),
        ({"missing": "median"}, "missing must be one of"),
        ({"more": 1}, "'more' is not expected"),
        ({"data": {"target": "ill", "features": ["age", "x"]}}, "column 'x' is not in"),
        ({"data": {"target": "ill", "features": []}}, "one or more columns"),
    ],
)
def test_a_wish_for_sums_that_is_none_is_refused(tmp_path, changes, reason):
    at = with_table(tmp_path / "s", table())
    call = sums(1, ["age"])
    assert reason in at.refusal(Call("sums", {**call.facts, **changes}))


@pytest.mark.parametrize("told", [{"bp": 1.0}, {"age": float("nan")}, {"age": float("inf")}])
def test_means_that_are_none_of_the_features_are_refused(tmp_path, told):
    at = with_table(tmp_path / "s", table())
    assert "a number per feature" in at.refusal(sums(2, ["age"], means=told))


def test_sums_that_could_be_subtracted_from_each_other_do_not_leave(tmp_path):
    """With "drop", another column more leaves out the rows that lack it."""
    at = with_table(tmp_path / "s", table())
    call = sums(1, ["age"])
    assert at.ask(call).kind == "sums"
    at.restarted()
    assert at.ask(call).kind == "sums"
    other = Call("sums", {**call.facts, "missing": "drop"})
    assert "two answers could be differenced" in at.refusal(other)
    assert "two answers could be differenced" in at.refusal(sums(1, ["age", "bp"]))


def test_figures_by_subgroup_are_refused_with_the_reason(tmp_path):
    with pytest.raises(SettingError, match="subgroup must be left out of a deployment: sites"):
        SiteData("north", "table", {"path": str(tmp_path / "x.csv"), "subgroup": "sex"}).check()

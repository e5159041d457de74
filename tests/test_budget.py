"""The table of accuracy at a budget and bytes to a target."""

import json

from idiolect.experiments import budget


def reached(words, bytes):
    return {"to_target_values": {"mean": words}, "to_target": {"mean": bytes}}


def test_the_gain_is_over_the_best_compressed_baseline_that_reaches_the_target():
    figures = {
        "lp-proj-1": reached(100, 500),
        "FedAvg": reached(50, 50),
        "QSGD": reached(None, None),
        "DGC": reached(900, 2000),
    }
    figures |= {"LBGM": reached(5000, 1500), "Sketch, fine-tuned": reached(20, 250)}
    assert budget.gain(figures, "to_target_values", "") == "9.0 times (DGC)"
    assert budget.gain(figures, "to_target", "") == "3.0 times (LBGM)"
    assert budget.gain(figures, "to_target_values", budget.OWN) == "0.2 times (Sketch)"
    assert budget.gain({"lp-proj-1": reached(100, 500)}, "to_target", "") == "none reaches it"


def test_every_row_is_measured_and_written(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "CASES", {"Synthetic(0, 0)": budget.CASES["Synthetic(0, 0)"]})
    monkeypatch.setattr(budget, "RATES", (0.1, 0.5))
    only = ("Local (sends nothing)", "lp-proj-1", "FedAvg", "QSGD", "QSGD, fine-tuned")
    paths = budget.write(tmp_path, seeds=1, rounds=3, only=only)
    assert {p.name for p in paths} == {"budget.md", "budget.json", "budget-synthetic.png"}
    stored = json.loads((tmp_path / "budget.json").read_text())["Synthetic(0, 0)"]
    assert tuple(stored) == only
    assert stored["Local (sends nothing)"]["to_target"]["by_seed"] == [0]
    assert stored["lp-proj-1"]["to_target_values"]["by_seed"] == [
        21 * 110
    ]  # one round: 100 down, 10 up
    page = (tmp_path / "budget.md").read_text()
    assert "| FedAvg | " in page and "fine-tuned: in words" in page


def test_the_step_size_is_chosen_on_validation_data_of_the_first_seed_alone(monkeypatch):
    seen = []

    def fake(method, task, federation, **settings):
        seen.append(settings)
        return type(
            "R",
            (),
            {"summary": lambda self: {"valid": {"accuracy": {"mean": -abs(method.lr - 0.1)}}}},
        )()

    monkeypatch.setattr(budget, "run", fake)
    method, _ = budget.chosen(budget.rows(21)["FedAvg"], None, None, {"rounds": 5})
    assert method.lr == 0.1 and all(s["seeds"] == 1 and s["eval_every"] == 0 for s in seen)

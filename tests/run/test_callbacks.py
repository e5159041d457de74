"""Watching a run: callbacks, a progress bar, early stopping, the best round by validation data."""

import contextlib
import io
import sys
import types

import pytest
import torch
from torch import nn

import idiolect as il
from helpers import classification, regression
from idiolect.report import progress as bars

DATA = classification(sizes=(20,) * 5, valid=0.3)
MODEL = il.Task(lambda: nn.Linear(6, 3))


def run(method="ditto", rounds=4, **settings) -> il.Result:
    return il.run(method, MODEL, DATA, rounds=rounds, batch=8, **settings)


def figures(result: il.Result) -> dict:
    return {**result.summary(), "seconds": 0, "settings": 0}


# -- callbacks -------------------------------------------------------------------------------------
def test_callbacks_see_everything_the_record_has(tmp_path):
    seen: list[il.Moment] = []
    names = ("on_round", "on_evaluate", "on_checkpoint", "on_end")
    watch = dict.fromkeys(names, seen.append)
    result = run(seeds=2, eval_every=2, checkpoint_every=4, directory=tmp_path / "r", **watch)
    events = [(m.event, m.seed, m.round) for m in seen if m.seed == 1]
    assert events == [
        ("round", 1, 1),
        ("evaluate", 1, 2),
        ("round", 1, 2),
        ("round", 1, 3),
        ("evaluate", 1, 4),
        ("round", 1, 4),
        ("checkpoint", 1, 4),
        ("checkpoint", 1, 4),
        ("end", 1, 4),
    ]
    for m in seen:
        assert m.rounds == 4 and m.settings == il.Settings(**result.record.settings)
        assert m.method == "ditto" and m.ledger["round"] == m.round
        assert m.ledger["selected"] == m.ledger["admitted"] == 5
    evaluated = [m.figures for m in seen if m.event == "evaluate"]
    assert [{"seed": i // 2, **row} for i, row in enumerate(evaluated)] == result.rounds_table()
    last = seen[-1]
    assert last.final == result.seeds[1].final and last.clients == result.seeds[1].clients
    assert last.ledger["bytes_up"] == result.seeds[1].sent["bytes_up"]
    assert seen[0].figures == {} and seen[0].final == {}
    paths = [m.checkpoint for m in seen if m.event == "checkpoint"]
    assert all(p is not None and p.name.startswith("000000000004") for p in paths)
    assert len(repr(last)) < 200


def test_a_callback_may_follow_the_servers_vectors():
    seen = []
    result = run("fedavg", on_round=lambda m: seen.append(m.state()["w"]))
    state = result.session().server.state["w"]
    assert len(seen) == 4 and torch.equal(seen[-1], state)
    assert not torch.equal(seen[0], seen[1])
    writes = run("fedavg", on_round=lambda m: m.state()["w"].zero_())  # a copy
    assert figures(writes) == figures(result)


def test_callbacks_change_nothing():
    watched = run(on_round=lambda m: None, on_evaluate=lambda m: None, on_end=lambda m: None)
    assert figures(watched) == figures(run())


@pytest.mark.parametrize("event", ["on_round", "on_evaluate"])
def test_a_callback_may_stop_a_seed(event):
    result = run(seeds=2, **{event: lambda m: m.stop() if m.round == 2 and m.seed == 0 else None})
    assert [s.stopped for s in result.seeds] == ["callback", "rounds"]
    assert [s.rounds for s in result.seeds] == [2, 4]
    assert result.seeds[0].final == run(rounds=2).seeds[0].final


def test_a_run_that_a_callback_stopped_stays_stopped_on_resume_and_may_grow(tmp_path):
    folder = tmp_path / "run"
    run(directory=folder, on_round=lambda m: m.stop() if m.round == 2 else None)
    again = run(directory=folder, resume=True)
    assert again.seeds[0].stopped == "callback" and again.seeds[0].rounds == 2
    longer = run(directory=folder, resume=True, rounds=6)
    assert longer.seeds[0].rounds == 6 and figures(longer) == figures(run(rounds=6))


@pytest.mark.parametrize("event", ["on_round", "on_evaluate", "on_checkpoint"])
def test_an_error_in_a_callback_ends_the_run_with_a_checkpoint(event, tmp_path):
    folder = tmp_path / "run"

    def fail(moment: il.Moment) -> None:
        if moment.round == 2:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        run(directory=folder, checkpoint_every=1, **{event: fail})
    assert "stands at round 2 of seed 0; resume=True" in caught.value.__notes__[0]
    finished = run(directory=folder, resume=True, checkpoint_every=1)
    assert finished.record.starts[1]["from"] == {"0": 2}
    assert figures(finished) == figures(run(checkpoint_every=1))


def test_what_is_no_function_is_refused():
    with pytest.raises(il.SettingError, match="on_round must be a function"):
        run(on_round=3)


def test_comparisons_and_pipelines_call_them_too():
    seen: list[tuple[str, str]] = []
    note = lambda m: seen.append((m.method, m.event))  # noqa: E731
    il.compare(["fedavg", "ditto"], MODEL, DATA, rounds=1, baselines=False, on_end=note)
    il.pipeline([("fedavg", 1), ("ditto", 1)], MODEL, DATA, on_end=note)
    assert seen == [("fedavg", "end"), ("ditto", "end")] * 2


# -- progress --------------------------------------------------------------------------------------
class Screen(io.StringIO):
    def __init__(self, terminal: bool = True):
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def shown(terminal: bool = True, **given) -> str:
    """What a run shows."""
    with contextlib.redirect_stderr(Screen(terminal)) as screen:
        run(**given)
    return screen.getvalue()


@pytest.fixture
def at_once(monkeypatch) -> None:
    monkeypatch.setattr(bars, "AFTER", 0)
    monkeypatch.setenv("TERM", "xterm")


def test_a_bar_is_drawn_in_a_terminal_after_two_seconds_of_work(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(bars, "clock", lambda: 0.1 * next(now))
    assert shown() == ""  # it is too short
    monkeypatch.setattr(bars, "clock", lambda: 1.0 * next(now))
    text = shown(seeds=2)
    assert "ditto seed 1, accuracy" in text and "8/8" in text


def test_a_bar_may_be_forbidden_or_asked_for(at_once):
    assert shown(progress=False) == ""
    assert shown(terminal=False) == ""
    assert "ditto seed 0" in shown(terminal=False, progress=True)


def test_a_notebook_has_a_bar(monkeypatch):
    kernel = types.SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: kernel))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert bars.style_of(None) == "bar" and bars.style_of(False) == "none"
    kernel.config = {}  # IPython in a terminal
    assert bars.style_of(None) == "none"


def test_progress_may_be_a_function_and_nothing_else():
    seen: list[tuple[int, int]] = []
    run(progress=lambda seed, round, accuracy: seen.append((seed, round)))
    assert seen == [(0, 1), (0, 2), (0, 3), (0, 4)]
    with pytest.raises(il.SettingError, match="progress must be True, False or a function"):
        run(progress="yes")


def test_a_bar_ends_with_its_run_however_it_ends(at_once):
    def fail(moment: il.Moment) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        shown(on_end=fail)
    assert "4/4" in shown()  # a second bar is drawn


# -- early stopping --------------------------------------------------------------------------------
LATE = {"rounds": 60, "sample": 2, "patience": 3}


def by_hand(history: list[dict], metric: str, patience: int) -> int:
    """The round after which to stop."""
    sign = 1 if metric == "loss" else -1
    best, since = float("inf"), 0
    for row in history:
        value = sign * row[f"valid_{metric}"]
        since = 0 if value < best else since + 1
        best = min(best, value)
        if since == patience:
            return row["round"]
    return history[-1]["round"]


def test_the_chosen_metric_is_watched_unless_another_one_is_named():
    result = run("local:lr=1,steps=20", **LATE, metric="balanced_accuracy", keep_best=True)
    seed = result.seeds[0]
    assert seed.stopped == "patience" and seed.rounds == by_hand(
        seed.history, "balanced_accuracy", 3
    )
    assert seed.history[-1]["valid_balanced_accuracy"] == pytest.approx(
        seed.final["valid"]["balanced_accuracy"]
    )
    other = run("local:lr=1,steps=20", **LATE, metric="balanced_accuracy", patience_metric="loss")
    assert other.seeds[0].rounds == by_hand(other.seeds[0].history, "loss", 3)
    with pytest.raises(il.SettingError, match="patience_metric must be one of l"):
        run(patience=2, patience_metric="auc")


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_a_run_stops_when_validation_data_have_not_improved(metric):
    result = run("local:lr=1,steps=20", **LATE, patience_metric=metric)
    seed = result.seeds[0]
    assert seed.stopped == "patience" and seed.rounds < 60
    assert seed.rounds == by_hand(seed.history, metric, 3)
    assert seed.best in seed.history and seed.history.index(seed.best) == len(seed.history) - 4
    table = result.rounds_table()
    assert {"valid_loss", "valid_accuracy"} <= table[0].keys()
    assert seed.history[-1]["valid_loss"] == seed.final["valid"]["loss"]


def test_patience_counts_evaluations():
    seed = run("local:lr=1,steps=20", **LATE, eval_every=2).seeds[0]
    assert seed.stopped == "patience" and seed.rounds % 2 == 0
    assert seed.rounds == seed.best["round"] + 6


@pytest.mark.parametrize("at", [1, 3, 4])
def test_patience_resumes_exactly(at, tmp_path):
    def fail(moment: il.Moment) -> None:
        if moment.round == at:
            raise ZeroDivisionError

    given = {**LATE, "keep_best": True}
    with pytest.raises(ZeroDivisionError):
        run("local:lr=1,steps=20", directory=tmp_path / "r", **given, on_round=fail)
    one = run("local:lr=1,steps=20", directory=tmp_path / "r", resume=True, **given)
    other = run("local:lr=1,steps=20", **given)
    assert figures(one) == figures(other) and one.rounds_table() == other.rounds_table()
    for client in (0, 4):
        mine, theirs = (r.personal(client, best=True).weight for r in (one, other))
        assert torch.equal(mine, theirs)


def test_without_patience_the_history_has_no_validation_figures():
    assert not any(name.startswith("valid") for name in run().rounds_table()[0])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"patience": 2}, "patience: it decides by validation data, and no client has any"),
        ({"keep_best": True}, "keep_best: it decides by validation data"),
        (
            {"patience": 2, "eval_every": 0},
            "eval_every must be a whole number >= 1 with patience, got 0",
        ),
    ],
)
def test_early_stopping_needs_validation_data(settings, says):
    bare = classification(sizes=(20,) * 3, valid=0)
    with pytest.raises(il.SettingError, match=says):
        il.run("fedavg", MODEL, bare, rounds=2, **settings)


def test_a_regression_is_watched_by_its_loss():
    data = regression(sizes=(20,) * 3)
    model = nn.Linear(6, 1)
    says = "patience_metric must be 'loss' for real targets, got 'accuracy'"
    with pytest.raises(il.SettingError, match=says):
        il.run("fedavg", model, data, rounds=2, patience=2, patience_metric="accuracy")
    assert il.run("fedavg", model, data, rounds=3, patience=2).seeds[0].best


# -- the best round --------------------------------------------------------------------------------
@pytest.mark.parametrize("in_directory", [True, False])
def test_the_models_of_the_best_round_are_kept(in_directory, tmp_path):
    given = {"rounds": 12, "keep_best": True}
    folder = {"directory": tmp_path / "run"} if in_directory else {}
    result = run("local:lr=1,steps=20", **given, **folder)
    best = int(result.seeds[0].best["round"])
    assert best < 12 == result.seeds[0].rounds
    then = run("local:lr=1,steps=20", rounds=best)
    for client in DATA.ids:
        kept = result.personal(client, best=True).weight
        assert torch.equal(kept, then.personal(client).weight)
        assert not torch.equal(kept, result.personal(client).weight)
    asked = result.predict(DATA.inputs, client=0, best=True).probabilities
    assert (asked == then.predict(DATA.inputs, client=0).probabilities).all()
    result.export(tmp_path / "best", best=True, one_file=True)
    then.export(tmp_path / "then", one_file=True)
    name = "clients.safetensors"
    assert (tmp_path / "best" / name).read_bytes() == (tmp_path / "then" / name).read_bytes()


def test_the_last_round_stands_first_and_the_best_is_labelled():
    result = run("local:lr=1,steps=20", rounds=12, keep_best=True)
    summary = result.summary()
    assert summary["accuracy"]["mean"] == result.seeds[0].final["test"]["accuracy"]
    best = summary["best_by_validation"]
    assert best["rounds"] == [int(result.seeds[0].best["round"])]
    text = " ".join(str(result).split())
    assert f"the best round by validation data ({best['rounds'][0]}) had accuracy" in text


def test_a_saved_and_loaded_result_has_its_best_models(tmp_path):
    result = run("local:lr=1,steps=20", rounds=12, keep_best=True)
    result.save(tmp_path / "saved")
    again = il.load(tmp_path / "saved", task=MODEL)
    wanted = result.personal(2, best=True).weight
    assert torch.equal(again.personal(2, best=True).weight, wanted)
    assert torch.equal(again.personal(2).weight, result.personal(2).weight)


def test_best_models_that_were_not_kept_are_not_made_up():
    for result in (run(), run(patience=2)):
        with pytest.raises(il.SettingError, match="were not saved; run with keep_best=True"):
            result.personal(0, best=True)


def test_evaluated_rounds_may_have_figures_on_training_data(tmp_path):
    result = run(eval_train=True, directory=tmp_path / "r")
    last = result.rounds_table()[-1]
    train = result.summary()["train"]
    assert last["train_loss"] == pytest.approx(train["loss"]["mean"])
    assert last["train_accuracy"] == pytest.approx(train["accuracy"]["mean"])
    assert figures(run())["accuracy"] == figures(result)["accuracy"]
    assert "train_loss" not in run().rounds_table()[-1]
    longer = run(eval_train=True, directory=tmp_path / "r", resume=True, rounds=6)
    assert len(longer.rounds_table()) == 6 and "train_loss" in longer.rounds_table()[0]

"""What the server could learn: the attacks, their measures, and the words of the page."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cosine_similarity, one_hot

import idiolect as il
from idiolect_papers.own import inversion, leakage_page, membership
from idiolect_papers.own.inversion import (
    PRIORS,
    Copy,
    Effort,
    InversionJob,
    InversionSize,
    elsewhere,
    invert,
    nearest,
    picked,
    psnr,
)
from idiolect_papers.own.leakage import (
    INVERTED,
    PROTECTIONS,
    Protection,
    at_clients,
    first_messages,
    in_sums,
    median_norm,
    network,
    noisy,
    pictures,
    private_rows,
)
from idiolect_papers.own.leakage_page import (
    NEITHER,
    RECOGNISED,
    RECOVERED,
    Best,
    best,
    cell,
    in_short,
    page_of,
    section,
    verdict,
    with_section,
)
from idiolect_papers.own.membership import (
    LISTENED,
    MembershipJob,
    MembershipSize,
    Reader,
    Suspicion,
    advantage,
    cohort,
    confidence,
    listen,
)

DOCS = Path(__file__).parents[2] / "docs"
DIGITS = pictures("digits", 0)
TASK = network((1, 8, 8), 10, hidden=16, seed=0)
PUBLIC = DIGITS[400:1200]
SMALL = InversionSize(
    "digits", 16, targets=4, batch=4, most=8, iterations=4, slow_iterations=2, public=800, others=20
)
FEW = MembershipSize(data="digits", pooling=1, clients=20, samples=6, shadows=3, rounds=2, seeds=2)


def labels(several):
    return one_hot(several.targets, 10).float().view(len(several), 1, 1, 10)


def alone(several):
    return several.inputs.view(len(several), 1, 1, 1, 8, 8)


# -- messages --------------------------------------------------------------------------------------
def test_a_message_is_the_change_that_the_client_sends():
    federation = DIGITS.dealt(3, 2)
    said = first_messages(il.FedAvg(lr=0.5, steps=1), TASK, federation, seed=0)
    here = at_clients(federation, 0)
    g = TASK.grad(TASK.x0.repeat(3, 1), here.draw())
    assert torch.allclose(said, -0.5 * g, atol=1e-6)


def test_noise_is_that_of_its_clip():
    rows = torch.randn(4, 20_000)
    clip = median_norm(rows)
    clipped = noisy(rows, clip, 0.0, seed=0)
    assert clipped.norm(dim=1).max() <= clip * 1.0001
    noise = noisy(rows, clip, 0.1, seed=0) - clipped
    assert noise.std() == pytest.approx(0.1 * clip, rel=0.01)


def test_a_sum_of_one_is_the_message_itself():
    rows = torch.randn(6, 3)
    assert torch.equal(in_sums(rows, 1), rows)
    assert torch.allclose(in_sums(rows, 3)[1], rows[3:].mean(0))


# -- the attacker's copy of a client ---------------------------------------------------------------
@pytest.mark.parametrize("name", [n for n in INVERTED if "FFGG" not in n])
def test_the_copy_sends_what_the_client_sends(name):
    several = DIGITS[:5]
    observed = first_messages(INVERTED[name], TASK, several.dealt(5, 1), seed=0)
    copy = Copy(INVERTED[name], TASK)
    imagined = copy.change(alone(several), labels(several), torch.zeros(5, 1, 0))
    if "p = 1" in name:  # the message is its signs
        assert torch.equal(imagined.sign(), observed.sign())
    else:
        # the copy leaves out the tie of lp-proj's later steps
        least = 0.99 if "20 steps" in name else 1 - 1e-5
        assert cosine_similarity(imagined, observed).min() > least


def test_the_copy_with_the_clients_head_sends_what_ffgg_sends():
    several, method = DIGITS[:5], INVERTED["FFGG, head private"]
    federation = several.dealt(5, 1)
    down = method.broadcast(TASK, method.server(TASK))
    private = private_rows(method, TASK, federation)
    head = method.solve(TASK, down, private, at_clients(federation, 0))
    observed = first_messages(method, TASK, federation, seed=0)
    imagined = Copy(method, TASK).change(alone(several), labels(several), head.unsqueeze(1))
    assert torch.allclose(imagined, observed, atol=1e-5)


def test_the_labels_of_a_batch_are_read_from_the_last_bias():
    several = DIGITS[:8]
    (observed,) = first_messages(INVERTED["FedAvg, 1 step"], TASK, several.dealt(1, 8), seed=0)
    read = Copy(INVERTED["FedAvg, 1 step"], TASK).read_labels(observed, PUBLIC.inputs, 8)
    assert read.tolist() == sorted(several.targets.tolist())


# -- the attack ------------------------------------------------------------------------------------
def attacked(name, prior, rows, public=PUBLIC):
    observed = first_messages(INVERTED[name], TASK, rows.dealt(len(rows), 1), seed=0)
    return invert(Copy(INVERTED[name], TASK), observed, 1, 1, public, prior, Effort(300), 0)[:, 0]


def blind(rows):
    return psnr(PUBLIC.means()[rows.targets], rows.inputs)


def test_a_picture_comes_back_from_a_step_of_fedavg():
    rows = DIGITS[:4]
    guesses = attacked("FedAvg, 1 step", "smooth", rows)
    assert psnr(guesses, rows.inputs).min() > 25 > blind(rows).max()


def test_a_picture_comes_back_from_ffgg_though_the_head_is_private():
    rows = DIGITS[:4]
    guesses = attacked("FFGG, head private", "smooth", rows)
    assert psnr(guesses, rows.inputs).mean() > blind(rows).mean() + 3


@pytest.mark.parametrize("prior", PRIORS)
def test_five_numbers_do_not_hold_a_picture(prior):
    rows = DIGITS[:8]
    guesses = attacked("lp-proj, dim 5, 1 step", prior, rows)
    assert psnr(guesses, rows.inputs).mean() < blind(rows).mean()


def test_noise_of_the_size_of_the_clip_leaves_nothing():
    rows, method = DIGITS[:4], INVERTED["FedAvg, 1 step"]
    said = first_messages(method, TASK, rows.dealt(4, 1), seed=0)
    observed = noisy(said, median_norm(said), 1.0, seed=1)
    guesses = invert(Copy(method, TASK), observed, 1, 1, PUBLIC, "smooth", Effort(100), 0)[:, 0]
    assert psnr(guesses, rows.inputs).mean() < blind(rows).mean()


# -- measures of guesses ---------------------------------------------------------------------------
def test_psnr_is_that_of_the_squared_error():
    zeros, tenths = torch.zeros(1, 1, 4, 4), torch.full((1, 1, 4, 4), 0.01)
    assert psnr(zeros, tenths).item() == pytest.approx(40)
    assert psnr(zeros, zeros).item() == pytest.approx(60)  # the most that is shown


def test_every_original_meets_its_nearest_guess():
    originals = DIGITS.inputs[:3].unsqueeze(0)
    shuffled = originals[:, [2, 0, 1]]
    guesses, figures = nearest(shuffled, originals)
    assert torch.equal(guesses, originals) and figures.min() == pytest.approx(60)


def test_an_original_is_picked_out_by_itself_and_not_by_a_stranger():
    rows, others = DIGITS[:20], DIGITS[20:]
    assert picked(rows.inputs, rows, others).all()
    strangers = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert picked(strangers, rows, others).float().mean() < 0.2


def test_many_blind_guesses_are_as_near_to_pictures_that_no_message_holds():
    rows, others = DIGITS[:50], DIGITS[400:]
    guesses = DIGITS.inputs[200:264]  # of other people
    _, own = nearest(guesses.unsqueeze(0), rows.inputs.unsqueeze(0))
    assert own.mean() == pytest.approx(elsewhere(guesses, rows, others).mean(), abs=0.5)


def columns(gain, hits, n=10):
    jitter = [0.1 * (i % 3) for i in range(n)]
    return {
        "psnr": [12 + gain + j for j in jitter],
        "blind": [12.0] * n,
        "elsewhere": [9.0] * n,
        "mse": [0.06] * n,
        "picked": [i < hits for i in range(n)],
    }


@pytest.mark.parametrize(
    ("gain", "hits", "word"),
    [
        (8, 10, RECOVERED),
        (1, 0, RECOGNISED),  # nearer than a blind guess, but not by half the error
        (-4, 5, RECOGNISED),
        (-4, 1, NEITHER),  # one of ten in a thousand may be luck
        (-4, 0, NEITHER),
    ],
)
def test_words_for_guesses_follow_from_figures(gain, hits, word):
    bad = columns(-5, 0)
    assert verdict(cell({"smooth": columns(gain, hits), "public": bad}), 1001) == word


def test_guesses_that_come_near_to_any_picture_recover_none():
    near = columns(8, 0) | {"elsewhere": [21.0] * 10}
    assert verdict(cell({"smooth": near}), 1001) == NEITHER


def test_a_single_original_proves_nothing():
    figures = {"gain": 9.0, "gain_p": 1.0, "picked": 1, "of": 1}
    assert verdict({"smooth": figures}, 101) == NEITHER


# -- membership ------------------------------------------------------------------------------------
def test_areas_are_those_of_the_roc_curve():
    assert advantage(torch.arange(200.0) + 1000, torch.arange(200.0)) == {"auc": 1.0, "tpr": 1.0}
    assert advantage(torch.arange(200.0), torch.arange(200.0) + 1000)["auc"] == 0
    generator = torch.Generator().manual_seed(0)
    chance = advantage(*torch.randn(2, 20_000, generator=generator))
    assert chance["auc"] == pytest.approx(0.5, abs=0.01)
    assert chance["tpr"] == pytest.approx(0.01, abs=0.003)


def test_no_picture_is_with_two_clients_or_among_the_others():
    c = cohort(DIGITS, FEW)
    assert c.federation.clients == 20 + 10 * 3
    rows = torch.cat([c.federation.inputs, c.others.inputs]).flatten(1)
    assert len(rows.unique(dim=0)) == len(rows)
    for k in (0, 13):
        kind = k % 10
        _, targets = c.federation.part(k, "train")
        assert set(targets.tolist()) == {kind, (kind + 1) % 10}


@pytest.mark.parametrize("name", ["FedAvg", "FFGG, head private", "lp-proj, dim 21"])
def test_the_server_goes_on_as_in_a_run(name):
    method, c = LISTENED[name], cohort(DIGITS, FEW)
    *_, last = listen(method, TASK, c, rounds=3, noise=0.0, seed=0)
    states = []
    il.run(
        method,
        il.Task(TASK.model),
        c.federation.of(range(20)),
        rounds=2,
        batching="full",
        sample=20,
        seed=0,
        eval_every=0,
        progress=False,
        on_round=lambda moment: states.append(moment.state()),
    )
    for part, value in last.down.items():
        assert torch.allclose(states[-1][part], value, atol=1e-4), part


def test_confidence_is_the_log_odds_of_the_true_class():
    x, inputs = TASK.x0.unsqueeze(0), DIGITS.inputs[:5].unsqueeze(0)
    targets = DIGITS.targets[:5].unsqueeze(0)
    p = TASK.outputs(x, inputs).softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    odds = confidence(TASK, x, inputs, targets)
    assert torch.allclose(odds, (p / (1 - p)).log(), atol=1e-4)


@pytest.mark.parametrize("name", ["FedAvg", "lp-proj, dim 21"])
def test_the_model_that_is_read_would_send_the_message(name):
    method, c = LISTENED[name], cohort(DIGITS, FEW)
    reader = Reader(method, TASK, c)
    *_, heard = listen(method, TASK, c, rounds=2, noise=0.0, seed=0)
    expected = heard.shadows_said.unflatten(0, (10, -1)).mean(1)[c.client_kinds]
    models = reader.models(heard, heard.said, heard.said - expected, c.client_kinds)
    sent = heard.said + heard.down["w"]
    assert torch.allclose(models @ reader.P.T if "lp" in name else models, sent, atol=1e-4)


def test_members_are_told_from_others_by_messages_and_not_by_sums_of_strangers():
    size = replace(FEW, clients=100, samples=2)
    figures = MembershipJob("FedAvg", 0.0, 0, size).train()
    by_gradient = {p: figures[p]["gradient"]["auc"] for p in figures if p in PROTECTIONS}
    assert by_gradient["none"] > 0.7
    assert by_gradient["none"] > by_gradient["sum of 10"] > by_gradient["sum of 100"]


def test_what_was_never_in_a_message_cannot_be_told():
    c, strangers = cohort(DIGITS[900:], FEW), cohort(DIGITS[:900], FEW)
    outside = replace(c, members=strangers.members, others=strangers.others)
    suspicion = Suspicion(Reader(LISTENED["FedAvg"], TASK, outside), Protection(), FEW.shadows, 0)
    for heard in listen(LISTENED["FedAvg"], TASK, c, rounds=2, noise=0.0, seed=0):
        suspicion.listen(heard)
    for attack, figures in suspicion.figures().items():
        assert figures["auc"] == pytest.approx(0.5, abs=0.12), attack


def test_the_strongest_attack_counts_and_says_whether_it_tells():
    weak = {"auc": [0.5, 0.52, 0.49], "tpr": [0.01, 0.01, 0.02]}
    strong = {"auc": [0.7, 0.72, 0.71], "tpr": [0.05, 0.05, 0.06]}
    chosen = best({"loss": weak, "LiRA": strong})
    assert chosen.attack == "LiRA" and chosen.tells and not best({"loss": weak}).tells
    assert Best("loss", 0.5, None, 0.01, None, False).text("auc") == "0.50"


def test_what_one_of_three_attacks_gets_by_luck_does_not_tell():
    lucky = {"auc": [0.515, 0.52, 0.51], "tpr": [0.01, 0.01, 0.02]}  # alone, its interval would
    others = {"auc": [0.5, 0.49, 0.51], "tpr": [0.01, 0.01, 0.02]}
    assert best({"LiRA": lucky}).tells
    assert not best({"LiRA": lucky, "loss": others, "gradient": others}).tells


# -- the page --------------------------------------------------------------------------------------
@pytest.fixture
def few_methods(monkeypatch):
    names = ("FedAvg, 1 step", "lp-proj, dim 21, 1 step")
    inverted = {n: INVERTED[n] for n in names}
    listened = {n.removesuffix(", 1 step"): LISTENED[n.removesuffix(", 1 step")] for n in names}
    for module in (inversion, leakage_page):
        monkeypatch.setattr(module, "INVERTED", inverted)
    for module in (membership, leakage_page):
        monkeypatch.setattr(module, "LISTENED", listened)


def test_the_command_writes_page_figures_picture_and_the_section_of_trust(tmp_path, few_methods):
    (tmp_path / "trust.md").write_text("# Who sees what\n")
    listening = MembershipSize(
        data="digits", pooling=1, clients=100, samples=2, shadows=2, rounds=1, seeds=2
    )
    paths = leakage_page.write(tmp_path, sizes=(SMALL, listening))
    assert [p.name for p in paths] == ["leakage.md", "leakage.json", "leakage.png", "trust.md"]
    stored = json.loads((tmp_path / "leakage.json").read_text())
    assert (tmp_path / "leakage.md").read_text() == page_of(stored)
    assert section(stored) in (tmp_path / "trust.md").read_text()
    page = (tmp_path / "trust.md").read_text()
    assert with_section(page, section(stored)) == page


def test_long_local_steps_in_sums_are_left_to_the_full_scale():
    jobs = leakage_page.inversion_jobs(InversionSize())
    assert {job.clients for job in jobs if job.slow} == {1}
    assert InversionJob("FFGG, head private", 1, 10, "smooth", InversionSize()) in jobs


def test_the_stored_page_is_that_of_its_figures():
    stored = json.loads((DOCS / "leakage.json").read_text())
    assert (DOCS / "leakage.md").read_text() == page_of(stored)
    assert section(stored) in (DOCS / "trust.md").read_text()
    assert (DOCS / "leakage.png").exists()
    assert all(isinstance(sentence, str) for sentence in in_short(stored))

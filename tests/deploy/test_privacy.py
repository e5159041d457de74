"""Privacy in a deployment: noise at the server or at the sites, and each site's own account."""

import html
import json
import re

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")
from deploy.consents import consent_to
from deploy.site.common import server_for, synthetic, table
from deploy.site.test_consent import DATA as COLUMNS
from deploy.site.test_consent import agree
from deploy.sites import array_form, plan_of
from deploy.test_commands import made
from deploy.test_malicious_server import Attacker
from deploy.test_server import DATA, deployment, inprocess, quiet
from engine.stand_in import Wires, three
from idiolect.cli.main import main
from idiolect.core.files import private_folder
from idiolect.core.knobs import SettingError
from idiolect.deploy.config import Deployment, Proposal, Terms
from idiolect.deploy.server import serve
from idiolect.deploy.site import process
from idiolect.privacy.accountant import Accountant
from idiolect.run.plan import Plan
from idiolect.wire.messages import HEADER

CENTRAL, LOCAL = "central(noise=2)", "local(noise=2)"


@pytest.fixture
def layout(tmp_path):
    folder = made(tmp_path / "fed")
    private_folder(folder.server)
    return folder


def spent(at) -> dict:
    """What a site has counted of its only run."""
    (one,) = process.status(at.path)["privacy"].values()
    return one


def site(tmp_path, privacy, name="s", **settings):
    plan = plan_of("fedavg", privacy=privacy, batch=8, rounds=9, **settings)
    at = synthetic(tmp_path / name)
    consent_to(at.path, plan, array_form(at.owned.loaded))
    return at, Attacker(at, plan)


# -- the server ------------------------------------------------------------------------------------
@pytest.mark.parametrize("privacy", [CENTRAL, LOCAL])
def test_a_deployed_run_has_an_account_and_says_it(privacy, layout, tmp_path, capsys):
    run = deployment(privacy=privacy)
    result = serve(Wires(three(DATA)), run, layout.runs / "one", tell=quiet, status=layout.status)
    worst = Accountant(2.0).epsilon(3, 1e-5)
    assert result.seeds[0].privacy["epsilon"]["worst"] == worst
    assert [row["epsilon"] for row in result.clients_table()] == [worst] * 6
    assert len((layout.runs / "one" / "privacy-seed-3.log").read_text().splitlines()) == 4

    file = tmp_path / "status.html"
    command = ["deploy", "status", str(layout.folder), "--json", "--page", str(file)]
    assert main(command) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["privacy"]["epsilon"]["worst"] == worst
    assert [s["epsilon"] for s in facts["run"]["sites"]] == [worst] * 3
    assert main(["deploy", "status", str(layout.folder)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    page = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", file.read_text())).split())
    who = "the server, which sees" if privacy == CENTRAL else "trusted: nobody"
    for words in (text, page):
        assert f"ε = {worst:.3g} at δ = 1e-05" in words and who in words
        assert f"epsilon by site: east {worst:.3g}, north" in words
        assert "not covered by ε: figures" in words


def test_noise_is_added_by_the_server_which_weighs_all_alike(tmp_path):
    result = serve(Wires(three(DATA)), deployment(privacy=CENTRAL), tmp_path / "run", tell=quiet)
    assert result.session().server.roster.weights.tolist() == [1.0] * 6
    plain = inprocess()
    w, other = (r.session().server.state["w"] for r in (result, plain))
    assert not torch.allclose(w, other, atol=0.05)


def test_the_budget_ends_a_deployed_run(tmp_path):
    run = deployment(privacy=CENTRAL, epsilon=3.0, rounds=9)
    result = serve(Wires(three(DATA)), run, tmp_path / "run", tell=quiet)
    assert result.seeds[0].stopped == "epsilon" and result.seeds[0].rounds == 2


def test_a_site_that_joins_late_counts_like_the_others(tmp_path):
    sites = three(DATA)
    late = sites.popitem()
    wires = Wires(sites)
    calls = []

    def swallow(node, asked):
        calls.append(asked.kind)
        if calls.count("update") == 2:
            wires.sites.update([late])
        return False

    wires.swallow = swallow
    run = deployment(privacy=CENTRAL, terms={"sites": 2}, rounds=4)
    result = serve(wires, run, tmp_path / "run", tell=quiet)
    rows = result.clients_table()
    worst = Accountant(2.0).epsilon(4, 1e-5)
    assert [row["epsilon"] for row in rows[:4]] == [worst] * 4
    assert len(rows) == 6 and 0 < rows[5]["epsilon"] < worst


def test_a_server_that_was_killed_counts_its_rounds_for_everyone(tmp_path):
    run = deployment(privacy=CENTRAL)
    folder = tmp_path / "run"
    serve(Wires(three(DATA)), run, folder, tell=quiet)
    log = folder / "privacy-seed-3.log"
    log.write_bytes(log.read_bytes() + log.read_bytes().splitlines(keepends=True)[-1])
    again = serve(Wires(three(DATA)), run, folder, resume=True, tell=quiet)
    assert again.session().server.privacy.exposures.tolist() == [4] * 6


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"epsilon": 3.0}, r"noise as a number in a deployment, e.g. 'central\(noise=2.\d*\)'"),
        ({"privacy": "local", "epsilon": 3.0}, "each site adds its own noise, or counts what it"),
        ({"privacy": "samples", "epsilon": 3.0}, r"'samples\(noise=2\)'"),
        ({"privacy": CENTRAL, "noise_source": "seed"}, "noise_source must be left out in a depl"),
        ({"privacy": CENTRAL, "selection": "poisson"}, "selection must be left out in a deployme"),
    ],
)
def test_what_sites_could_not_count_is_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        deployment(**settings)


def test_the_noise_that_is_proposed_is_enough():
    with pytest.raises(SettingError) as refusal:
        deployment(epsilon=3.0, rounds=50)
    noise = float(re.search(r"noise=([\d.]+)", str(refusal.value))[1])
    assert 2.95 < Accountant(noise).epsilon(50, 1e-5) <= 3


# -- a site ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("privacy", [CENTRAL, LOCAL])
def test_a_site_counts_what_it_is_asked_for(privacy, tmp_path):
    at, server = site(tmp_path, privacy)
    server.enter()
    for version in range(3):
        server.round(version)
    one = spent(at)
    assert one["exposures"] == 3 and one["epsilon"] == Accountant(2.0).epsilon(3, 1e-5)
    lines = process.in_words(process.status(at.path))
    (line,) = [line for line in lines if line.startswith("Privacy spent")]
    assert "epsilon 3.71 at delta 1e-05 at most" in line and "3 messages, noise 2" in line
    at.restarted()
    assert spent(at)["exposures"] == 3


def messages(reply) -> tuple[np.ndarray, torch.Tensor]:
    """Headers and numbers of the messages in a reply."""
    rows = [row.numpy().tobytes() for row in reply.tensors["matrix"]]
    heads = np.concatenate([np.frombuffer(row[: HEADER.itemsize], dtype=HEADER) for row in rows])
    numbers = [np.frombuffer(row[HEADER.itemsize :], dtype=np.float64) for row in rows]
    return heads, torch.from_numpy(np.stack(numbers))


def test_a_site_clips_and_adds_noise_itself_and_tells_no_sizes(tmp_path):
    _, server = site(tmp_path, "local(noise=2, clip=0.5)")
    server.enter()
    heads, numbers = messages(server.round(0))
    assert heads["weight"].tolist() == [1.0] * 4
    changes = numbers - server.model()["w"]
    assert float(changes.std()) == pytest.approx(2 * 2 * 0.5, rel=0.1)


def test_noise_of_a_site_is_secret_whatever_the_server_proposes(tmp_path):
    seen = []
    for k in range(2):
        _, server = site(tmp_path, LOCAL, name=f"s{k}", noise_source="seed")
        server.enter()
        seen.append(messages(server.round(0))[1])
    assert not bool((seen[0] == seen[1]).any())


@pytest.mark.parametrize("privacy, more", [(LOCAL, 2), (CENTRAL, 1)])
def test_an_order_that_comes_again_after_a_restart_counts_where_noise_is_new(
    privacy, more, tmp_path
):
    at, server = site(tmp_path, privacy)
    server.enter()
    order = server.order(0)
    first = at.ask(order)
    at.restarted()
    second = at.ask(order)
    same = torch.equal(messages(first)[1], messages(second)[1])
    assert same == (privacy == CENTRAL)
    assert spent(at)["exposures"] == more


def test_the_very_same_frame_twice_in_a_row_has_one_reply_and_counts_once(tmp_path):
    at, server = site(tmp_path, LOCAL)
    server.enter()
    order = server.order(0)
    one, two = at.ask(order), at.ask(order)
    assert torch.equal(messages(one)[1], messages(two)[1]) and spent(at)["exposures"] == 1


def test_a_round_that_is_taken_back_counts_again(tmp_path):
    at, server = site(tmp_path, LOCAL)
    server.enter()
    for version in (0, 1, 1, 0):
        server.round(version, server.model(0.01 * (1 + spent_by_now(at))))
    assert spent(at)["exposures"] == 4


def spent_by_now(at) -> int:
    runs = process.status(at.path)["privacy"] or {}
    return sum(one["exposures"] for one in runs.values())


def test_a_site_refuses_what_would_pass_the_budget_whatever_the_server_asks(tmp_path):
    at, server = site(tmp_path, LOCAL, epsilon=4.0)
    server.enter()
    for version in range(3):
        assert server.round(version).kind == "sent"
    reason = at.refusal(server.order(3))
    assert "epsilon 4, would be passed; 3.71 is spent" in reason
    assert spent(at)["exposures"] == 3
    at.restarted()
    assert "would be passed" in at.refusal(server.order(3))


def test_orders_in_which_no_client_of_a_site_is_heard_cost_nothing(tmp_path):
    at, server = site(tmp_path, CENTRAL)
    server.enter()
    order = server.order(0)
    order.tensors["heard"] = order.tensors["heard"][:0]
    at.ask(order)
    assert spent_by_now(at) == 0


def test_gradients_with_clipped_samples_are_counted_at_the_site(tmp_path):
    at, server = site(tmp_path, "samples(noise=1)", batching="poisson")
    server.plan = plan_of(
        "fedavg", {"steps": 4}, privacy="samples(noise=1)", batching="poisson", batch=8, rounds=9
    )
    consent_to(at.path, server.plan, array_form(at.owned.loaded))
    server.enter()
    server.round(0)
    server.round(1)
    one = spent(at)
    fewest = int(at.owned.loaded.sizes("train").min())
    assert one["exposures"] == 8 and one["rate"] == min(1.0, 8 / fewest)
    assert one["epsilon"] == Accountant(1.0, one["rate"]).epsilon(8, 1e-5)


def test_rounds_of_runs_without_privacy_are_pointed_out(tmp_path):
    at, server = site(tmp_path, LOCAL)
    server.enter()
    server.round(0)
    plain = Attacker(at, plan_of("fedavg", batch=8, rounds=9), run=78)
    consent_to(at.path, plain.plan, array_form(at.owned.loaded))
    plain.enter().round(0)
    text = "\n".join(process.in_words(process.status(at.path)))
    assert "NOT COVERED: 1 round of runs without privacy" in text


def test_a_site_and_its_server_count_alike(tmp_path):
    at = synthetic(tmp_path / "s")
    session, rounds = server_for(at, plan_of("fedavg", privacy=LOCAL, sample=4))
    for _ in range(3):
        rounds.advance()
    assert session.server.ledger.admitted == 12
    assert session.server.privacy.worst() == spent(at)["epsilon"]


@pytest.mark.parametrize(
    "method, settings, message",
    [
        ("fedavg", {"privacy": "local", "epsilon": 3.0}, "noise as a number"),
        ("fedavg", {"privacy": "samples(noise=1)", "batching": "epochs"}, "batching must be"),
        ("fedproto", {"privacy": "samples(noise=1)", "batching": "poisson"}, "by gradients"),
    ],
)
def test_a_site_refuses_a_protection_that_does_not_hold(method, settings, message, tmp_path):
    at = synthetic(tmp_path / "s")
    plan = plan_of(method, batch=8, rounds=9, **settings)
    consent_to(at.path, plan, array_form(at.owned.loaded))
    reply = Attacker(at, plan).agree()
    assert reply.kind == "refused" and message in reply.facts["reason"]


# -- consent ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "settings, words",
    [
        (
            {"privacy": CENTRAL, "epsilon": 9.5},
            "protects each of your clients from everyone who sees the models that the server "
            "sends; trusted: the server, which sees each clipped message. THE SERVER adds noise, "
            "after it has seen each message (noise 2 times the largest influence); all rounds: "
            "epsilon 7.51, never above 9.5, at delta 1e-05. Not covered: samples per client",
        ),
        (
            {"privacy": LOCAL},
            "from everyone, the server included; trusted: nobody. this site adds noise to every "
            "message (noise 2 times the largest influence); all rounds: epsilon 7.51",
        ),
        (
            {"privacy": "samples(noise=1)", "batching": "poisson"},
            "protects each row of your data from everyone",
        ),
    ],
)
def test_the_owner_reads_who_is_protected_from_whom(settings, words, tmp_path, capsys):
    frame = table(200)
    frame.to_csv(tmp_path / "visits.csv", index=False)
    plan = Plan("fedavg", {}, "", settings={"rounds": 10, "batch": 16, **settings})
    data = {**COLUMNS, "features": ["age", "bp"], "scale": "client"}
    data["kinds"] = ["number", "number"]
    run = Deployment(plan, data, Terms(name="heart", address="a.org:9092", insecure=True))
    Proposal.of(run, "").write(tmp_path / "federation.toml")
    text, _ = agree(tmp_path / "federation.toml", capsys, code=1)
    assert words in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80

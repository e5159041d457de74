"""The page of a server or a site says what text and JSON say, and shows foreign text as text."""

import html
import json
import re
import time

import pytest

pytest.importorskip("flwr")
from deploy.site.common import synthetic
from deploy.test_commands import made
from deploy.test_malicious_server import Attacker
from deploy.test_malicious_site import flood
from deploy.test_server import DATA, deployment, from_south, quiet
from engine.stand_in import Wires, three
from idiolect.cli.main import main
from idiolect.core.documents import encode
from idiolect.core.files import private_folder, write_document
from idiolect.deploy.page import Section, write_page
from idiolect.deploy.server import serve
from idiolect.deploy.watch import ServerStatus, SiteStatus
from idiolect.report.format import size

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;\x1b[2J"


@pytest.fixture
def layout(tmp_path):
    folder = made(tmp_path / "fed")
    private_folder(folder.server)
    return folder


def words(page: str) -> str:
    """The text of a page, as a browser shows it."""
    body = re.sub(r"<(style|title)>.*?</\1>", "", page, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def rows(page: str) -> list[list[str]]:
    """The cells of its table."""
    lines = re.findall(r"<tr>(.*?)</tr>", page)
    return [
        [html.unescape(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", line)]
        for line in lines
    ]


def check_plain(page: str) -> None:
    """Nothing runs, and nothing is loaded."""
    assert not re.search(r"<script|<img|<link|<iframe|javascript:|url\(|https?://", page, re.I)
    assert "\x1b" not in page and "default-src 'none'" in page


def test_the_page_of_a_server_has_the_figures_of_its_json(layout, tmp_path, capsys):
    wires = Wires(three(DATA))
    wires.tamper = from_south("conclude", flood)
    run = deployment(terms={"sites": 2})
    serve(wires, run, layout.runs / "first", tell=quiet, status=layout.status)
    file = tmp_path / "status.html"
    command = ["deploy", "status", str(layout.folder), "--json", "--page", str(file)]
    assert main(command) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["privacy"] is None
    page = file.read_text()
    check_plain(page)
    header, *lines = rows(page)
    assert header[:3] == ["site", "now", "last seen"]
    for line, site in zip(lines, facts["run"]["sites"], strict=True):
        assert line[0] == site["site"]
        assert line[1] == ("put out" if site["put_out"] else "here")
        assert line[3:7] == [str(site[n]) for n in ("clients", "rounds", "rejected", "missing")]
        assert line[7:] == [size(site["bytes_up"]), size(site["bytes_down"])]
    text = words(page)
    assert "3 of 3 rounds done" in text and "state ended" in text
    assert "south (put out): a frame must have" in text
    assert "privacy spent none is accounted (messages carry no noise)" in text
    assert "server.crt valid until" in text and "keys registered site-1, site-2" in text
    assert main(["deploy", "status", str(layout.folder)]) == 0
    assert "Privacy spent: none is accounted" in capsys.readouterr().out


def test_foreign_text_is_text(layout, tmp_path, capsys):
    now = time.time()
    site = SiteStatus(EVIL, False, 1, now, 2, 3, 4, 5, 6, True, f"reason {EVIL}")
    run = ServerStatus("training", "runs/x", EVIL, 4, 10, now, now, now, 60.0, 20.0, [site])
    write_document(layout.status, encode(run))
    file = tmp_path / "status.html"
    assert main(["deploy", "status", str(layout.folder), "--page", str(file)]) == 0
    page = file.read_text()
    check_plain(page)
    assert rows(page)[1][0] == EVIL.replace("\x1b", "\\x1b")


def test_every_part_of_a_page_is_escaped(tmp_path):
    section = Section(EVIL, {EVIL: EVIL}, {EVIL: (1, 2)}, [(EVIL,), (EVIL,)], 1, [EVIL])
    write_page(tmp_path / "a.html", EVIL, EVIL, [section])
    page = (tmp_path / "a.html").read_text()
    check_plain(page)
    assert page.count("&lt;script&gt;") == 10


def test_the_page_before_a_run(layout, tmp_path):
    file = tmp_path / "status.html"
    assert main(["deploy", "status", str(layout.folder), "--page", str(file)]) == 0
    assert "no run has been started" in words(file.read_text())


def test_the_page_of_a_site_has_the_figures_of_its_json(tmp_path, capsys):
    at = synthetic(tmp_path / "s", max_rounds=40)
    server = Attacker(at).enter()
    server.round(0)
    at.ask(server.evaluation(1))
    at.refusal(server.conclusion(9))
    file = tmp_path / "site.html"
    command = ["host", "status", "--state", str(at.path), "--json", "--page", str(file)]
    assert main(command) == 0
    facts = json.loads(capsys.readouterr().out)
    left = facts["left"]
    page = file.read_text()
    check_plain(page)
    text = words(page)
    assert facts["privacy"] is None and left["rounds"] == 1 and left["refused"] == 1
    for line in (
        f"{left['numbers']:,} in {left['messages']} replies",
        f"{left['bytes_out']:,} out, {left['bytes_in']:,} in",
        f"{left['rounds']} of 40 rounds",
        f"{left['evaluations']} of 100 evaluations",
        "refused 1 message",
        f"run {facts['run']['run']}",
        "max_rounds 40",
        "privacy spent none is accounted (messages carry no noise)",
    ):
        assert line in text, line
    assert 'style="width: 2.5%"' in page
    assert main(["host", "status", "--state", str(at.path)]) == 0
    assert "Privacy spent: none is accounted" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["status.json", "none/status.html", "status"])
def test_a_page_is_an_html_file_in_a_folder(name, layout, tmp_path, capsys):
    command = ["deploy", "status", str(layout.folder), "--page", str(tmp_path / name)]
    assert main(command) == 2
    assert "--page must be a file FILE.html" in capsys.readouterr().err
    assert not (tmp_path / name).exists()

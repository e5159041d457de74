"""The status of a server or of a site as one HTML file, without script and without network."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from ..core.files import write_atomic
from ..core.text import plural, shown
from ..report.format import size
from .site.process import caps, data_name, last_contact
from .watch import ago, privacy_words, state_of, state_of_site, totals, validity

STYLE = """
:root { color-scheme: light dark; --line: #d5d5da; --soft: #5d5d66; --bar: #2f6fb0; --bad: #a3261c;
  --page: #fff; --text: #1b1b1f; --track: #ececf0 }
@media (prefers-color-scheme: dark) { :root { --line: #3b3b42; --soft: #a5a5b0; --bar: #6ea8e0;
  --bad: #ff9187; --page: #17171a; --text: #ececf0; --track: #2b2b31 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem; background: var(--page);
  color: var(--text); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line) }
p { margin: .25rem 0 } .soft { color: var(--soft) } .bad { color: var(--bad) }
dl { display: grid; grid-template-columns: 14rem 1fr; gap: .25rem 1rem; margin: 0 }
dt { color: var(--soft) } dd { margin: 0 }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; overflow-wrap: normal }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top }
th { color: var(--soft); font-weight: normal } td + td, th { white-space: nowrap }
td { font-variant-numeric: tabular-nums }
td:first-child { min-width: 7rem; max-width: 18rem; overflow-wrap: anywhere }
th.number, td.number { text-align: right }
.bar { margin: .5rem 0 } .bar div { background: var(--track); height: .6rem; border-radius: .3rem;
  overflow: hidden; print-color-adjust: exact; -webkit-print-color-adjust: exact }
.bar span { display: block; height: 100%; background: var(--bar) }
@media (max-width: 36rem) { dl { grid-template-columns: 1fr; gap: 0 } dd { margin-bottom: .5rem } }
@media print { body { max-width: none; padding: 0 } h2, tr, .bar { break-inside: avoid } }
"""


@dataclass(frozen=True)
class Section:
    """A part of a page; all texts are plain, and escaped when it is written."""

    title: str
    facts: dict[str, str] = field(default_factory=dict)
    bars: dict[str, tuple[int, int]] = field(default_factory=dict)  # name -> count, most
    table: list[tuple[str | int, ...]] = field(default_factory=list)  # the first row is the header
    numbers: int = 0  # columns of the table, from the right, that are numbers
    warnings: list[str] = field(default_factory=list)


def write_page(path: Path, title: str, lead: str, sections: list[Section]) -> None:
    """One file, for its user alone."""
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    body = "".join(map(_section, sections))
    write_atomic(
        path,
        f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{_text(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{_text(title)}</h1>
<p>{_text(lead)}</p>
<p class="soft">Written by idiolect on {now}</p>
{body}</body>
</html>
""".encode(),
    )


def _text(value: object) -> str:
    """A text of anyone's, as text."""
    return escape(shown(value))


def _section(section: Section) -> str:
    parts = [f"<h2>{_text(section.title)}</h2>"]
    if section.facts:
        pairs = (f"<dt>{_text(n)}</dt><dd>{_text(v)}</dd>" for n, v in section.facts.items())
        parts.append(f"<dl>{''.join(pairs)}</dl>")
    for name, (count, most) in section.bars.items():
        share = min(100.0, 100 * count / most)
        words = f"{count:,} of {most:,} {_text(name)}"
        parts.append(
            f'<div class="bar">{words}<div><span style="width: {share:.1f}%"></span></div></div>'
        )
    if section.table:
        header, *rows = section.table
        lines = [_row("th", header, section.numbers)]
        lines += [_row("td", row, section.numbers) for row in rows]
        parts.append(f'<div class="wide"><table>{"".join(lines)}</table></div>')
    parts += [f'<p class="bad">{_text(line)}</p>' for line in section.warnings]
    return "\n".join(parts) + "\n"


def _row(tag: str, cells: tuple[str | int, ...], numbers: int) -> str:
    first = len(cells) - numbers
    words = (
        f'<{tag} class="number">{_text(cell)}</{tag}>'
        if column >= first
        else f"<{tag}>{_text(cell)}</{tag}>"
        for column, cell in enumerate(cells)
    )
    return f"<tr>{''.join(words)}</tr>"


# -- the server ------------------------------------------------------------------------------------
def write_server_page(path: Path, facts: dict[str, Any], now: float | None = None) -> None:
    """What `deploy status` says, as a page."""
    now = time.time() if now is None else now
    up = facts["server"] is not None and facts["superlink"] is not None
    here = "running" if up else "not running"
    sections = [_run_section(facts, now)]
    if facts["run"] is not None:
        sections.append(_sites_section(facts["run"]["sites"], now))
    access = Section(
        "Who can connect",
        {name: validity(last, now) for name, last in facts["certificates"].items()}
        | {"keys registered": ", ".join(facts["keys"]) or "none"},
        warnings=["without TLS and keys: everyone on the network can read and forge messages"]
        if facts["insecure"]
        else [],
    )
    name = Path(facts["folder"]).name
    lead = f"The server is {here}, at {facts['address']}"
    write_page(path, f"Federation {name}", lead, [*sections, access])


def _run_section(facts: dict[str, Any], now: float) -> Section:
    run = facts["run"]
    if run is None:
        return Section("Run", {"state": "no run has been started"})
    sums = totals(run["sites"])
    return Section(
        f"Run {Path(run['directory']).name}",
        {
            "state": state_of(run, facts["server"] is not None),
            "method": run["method"],
            "last round": ago(run["last_round"], now),
            "messages": f"{sums['rejected']} rejected, {sums['missing']} missing",
            "bytes": f"{size(sums['bytes_up'])} up, {size(sums['bytes_down'])} down",
            "privacy spent": privacy_words(run),
        },
        {"rounds done": (run["rounds_done"], run["rounds"])},
        warnings=[facts["error"]] if facts["error"] else [],
    )


def _sites_section(sites: list[dict[str, Any]], now: float) -> Section:
    if not sites:
        return Section("Sites", {"sites": "none has come yet"})
    rows: list[tuple[str | int, ...]] = [
        ("site", "now", "last seen", "clients", "rounds", "rejected", "missing", "up", "down")
    ]
    for site in sites:
        counts = tuple(site[name] for name in ("clients", "rounds", "rejected", "missing"))
        traffic = (size(site["bytes_up"]), size(site["bytes_down"]))
        last_seen = ago(site["seen"], now)
        rows.append((site["site"], state_of_site(site), last_seen, *counts, *traffic))
    reasons = [
        f"{site['site']} ({state_of_site(site)}): {site['reason']}"
        for site in sites
        if site["reason"]
    ]
    return Section("Sites", table=rows, numbers=6, warnings=reasons)


# -- a site ----------------------------------------------------------------------------------------
def write_site_page(path: Path, facts: dict[str, Any]) -> None:
    """What `host status` says, as a page."""
    usage, run = facts["left"], facts["run"]
    here = "is running" if facts["running"] else "is not running"
    consent = facts["consent"]
    terms = f"nothing: {consent['reason']}"
    if consent["federation"] is not None:
        terms = f"{consent['federation']}, terms {consent['code']}, by {consent['user']}"
        terms += f" on {consent['time']}"
    agreed = {"agreed to": terms, "run": "none yet"}
    if consent["proposed"] is not None:
        agreed["WAITS FOR YOU"] = f"{consent['proposed']} proposes other terms"
    if run is not None:
        agreed |= {
            "run": run["run"],
            "method": run["method"],
            "model": run["model"],
            "clients": str(len(run["clients"])),
            "rounds done": str(run["rounds"]),
        }
    figures = [f"{name} ({plural(count, 'time')})" for name, count in usage["metrics"].items()]
    departures = {
        "numbers": f"{usage['numbers']:,} in {plural(usage['messages'], 'reply', 'replies')}",
        "bytes": f"{usage['bytes_out']:,} out, {usage['bytes_in']:,} in",
        "figures of evaluations": ", ".join(figures) or "none",
        "refused": plural(usage["refused"], "message"),
        "last contact": last_contact(usage["last_contact"]),
        "privacy spent": "; ".join(facts["privacy_words"]),
        "log of all messages": facts["log"],
    }
    rules = {name: str(value) or "none" for name, value in facts["rules"].items()}
    sections = [
        Section("Run", agreed),
        Section("What has left", departures),
        Section("Used of what the owner allows", bars=caps(facts["rules"], usage)),
        Section("The owner's rules", rules),
    ]
    lead = f"The site {here}; data: {data_name(facts['data'])}"
    write_page(path, f"Site {facts['site']}", lead, sections)

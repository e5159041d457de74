"""robustness.md: findings, settings, one table per federation and attack, differences."""

from __future__ import annotations

from collections.abc import Iterator

from . import words
from .findings import FAR, above, breaks, differences, unmoved, useless
from .grid import ATTACKS, EVERY, FEDERATIONS, MNIST, heard_per_round, percent
from .published import Published, read_published
from .tables import Tables


def page(tables: Tables, rounds: int, seeds: int, clients: int) -> str:
    """The whole page."""
    with_mnist = any(federation == MNIST for federation, _, _ in tables.rows)
    head = words.HEAD.format(
        more=words.AND_MNIST if with_mnist else "",
        rounds=rounds,
        seeds="1 seed" if seeds == 1 else f"{seeds} seeds",
        clients=clients,
        heard=heard_per_round(clients),
        every=EVERY,
    )
    published = read_published()
    findings = [unmoved(tables), above(tables), useless(tables), breaks(tables)]
    lines = [head, "## What it shows", "", *(f"- {text}" for text in findings), "", words.SETTINGS]
    few = FEDERATIONS[MNIST].few
    if few and with_mnist:
        everyone, others = (min(rounds, number) for number in few)
        who = {"clients": FEDERATIONS[MNIST].many(clients)}
        who["heard"] = heard_per_round(clients)
        lines.append(words.MNIST.format(everyone=everyone, others=others, **who))
    for federation, attack in dict.fromkeys((f, a) for f, a, _ in tables.rows):
        lines += [*_table(tables, published, federation, attack), ""]
    far = differences(tables, published)
    lines += [words.FAR_APART.format(far=FAR), *(f"- {text}" for text in far), ""]
    return "\n".join([*lines, words.WHY])


def _table(tables: Tables, published: Published, federation: str, attack: str) -> Iterator[str]:
    shares = (0.0, *ATTACKS[attack].shares)
    yield f"## {federation}, {attack}"
    yield ""
    yield "| method | " + " | ".join(percent(s) if s else "clean" for s in shares) + " |"
    yield "|---" * (len(shares) + 1) + "|"
    for (f, a, method), row in tables.rows.items():
        if (f, a) == (federation, attack):
            cells = [row[s].text() for s in shares]
            if theirs := published.get((f, a, method)):
                pairs = zip(cells, theirs, strict=True)
                cells = [f"{ours}<br><sub>{_paper(t)}</sub>" for ours, t in pairs]
            yield f"| {method} | " + " | ".join(cells) + " |"


def _paper(cell: tuple[float, float] | None) -> str:
    return "★" if cell is None else f"{cell[0]:.3f} ({cell[1]:.3f})"

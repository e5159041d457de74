"""budget.md: its words and tables, from the figures of budget.json."""

from __future__ import annotations

from typing import Any

from idiolect.report.format import count, goal, number, size

from .cases import CASES, CHANNELS, FINETUNED, SKETCH_ROWS, TUNED

Figures = dict[str, Any]  # of one federation: label of the row -> what it reached


def page(stored: dict[str, Figures]) -> str:
    """The page of these figures, by federation."""
    lines = [HEAD]
    for title, figures in stored.items():
        case = CASES[title]
        lines += [
            f"## {title}: budget {case.budget:,} words, target {case.target}",
            "",
            "| method | accuracy at the budget | words to the target "
            "| bytes really sent to the target | accuracy, last round |",
            "|---|---|---|---|---|",
            *(f"| {label} | {line(f)} |" for label, f in figures.items()),
            "",
            "What the best compressed baseline sends to reach the target, as a multiple of what",
            "lp-proj-1 sends:",
            "",
        ]
        for what, suffix in (("a shared model", ""), ("fine-tuned", FINETUNED)):
            in_words = gain(figures, "to_target_values", suffix)
            in_bytes = gain(figures, "to_target", suffix)
            lines.append(f"- {what}: in words {in_words}; in bytes really sent {in_bytes}")
        lines += [*_chosen(figures), "", f"![Accuracy against words sent]({case.picture})", ""]
    tuned = {t: CASES[t].search_rounds for t, f in stored.items() if any(TUNED in n for n in f)}
    if tuned:
        rounds = "; ".join(f"{title}: {number}" for title, number in tuned.items())
        rows = " or ".join(map(str, SKETCH_ROWS))
        lines.append(HOW_TUNED.format(rows=rows, rounds=rounds))
    return "\n".join([*lines, TAIL])


def line(f: dict[str, Any]) -> str:
    """The cells of a row."""
    cells = [
        goal(f["at_budget_values"], number),
        goal(f["to_target_values"], count),
        goal(f["to_target"], size),
        number(f["last"]),
    ]
    return " | ".join(cells)


def gain(figures: Figures, key: str, suffix: str) -> str:
    """How many times as much as lp-proj-1 the best compressed baseline sends to the target."""
    ours = figures["lp-proj-1"][key]["mean"]
    names = [*CHANNELS, *(channel + TUNED for channel in CHANNELS)]
    labels = [name + suffix for name in names if name + suffix in figures]
    theirs = {n: figures[n][key]["mean"] for n in labels if figures[n][key]["mean"]}
    if not ours or not theirs:
        return "none reaches it"
    best = min(theirs, key=lambda n: theirs[n])
    return f"{theirs[best] / ours:.1f} times ({best.removesuffix(FINETUNED)})"


def _chosen(figures: Figures) -> list[str]:
    """What validation data chose for the tuned rows."""
    tuned = {
        label.removesuffix(FINETUNED).removesuffix(TUNED): f
        for label, f in figures.items()
        if TUNED in label
    }
    told = [
        f"{name} `{f['channel']}`, step size {f['lr']:g}, steps {f['steps']}"
        for name, f in tuned.items()
    ]
    return ["", "Chosen for the tuned rows:", "", *(f"- {text}" for text in told)] if told else []


HEAD = """\
# What do bytes buy?

The two columns of Table 5 of the lp-proj paper. A *word* is a 32-bit number as the paper counts:
both directions, its formulas for coded messages, lp-proj charged for all clients down and the
others for the tenth that is heard. *Bytes* are what is really sent: headers too, and the model down
in full, since a client that was not heard last time cannot use a coded change. ★: the first round
is beyond the budget, or the target is not reached; † the rounds ended before the budget was spent.
Compressed methods are FedAvg through a channel; *fine-tuned*: personalised before use by two SGD
steps, as the paper does for a fair comparison. Step sizes are chosen from {0.05, 0.1, 0.5} on
validation data of seed 0; lp-proj has `preset=paper`. Written by `idiolect reproduce budget`.
"""
HOW_TUNED = """\
## How rows are tuned

*Tuned* rows choose from the whole grid of the paper's appendix C.2: step size 0.05, 0.1 or 0.5;
QSGD: 5, 10 or 15 levels, buckets of 500, 1000 or 2000; DGC: first sparsity 0.25, 0.5 or 0.75, rise
0.75, 0.5 or 0.25; LBGM: δ 0.2, 0.5 or 0.8, R 1 or 5 (the others take one step per round, as in the
public code); Sketch: columns 0.02 d or 0.05 d, k 0.01 d or 0.05 d. Its rows are {rows}, which is
0.005 d or 0.01 d, as in the paper, for d = 610; for a model of more than 10,000 numbers such a
table would be larger than the model. The search is short: what does best on validation data,
fine-tuned, with seed 0 after few rounds ({rounds}). That favours what learns fast, and no bytes are
counted in it; nor are they in the paper's.
"""
TAIL = """\
## How to read it

Local is in the tables because it answers the question behind them: a target that a client reaches
alone, without a message, says nothing about what messages are worth. lp-proj reaches it early for
the same reason: everyone trains 20 steps before the first message, while FedAvg starts from one
shared model, and two steps of fine-tuning take it there as well. For LBGM the paper's own Table 5
has that: 12,200 words to the target on Synthetic(0, 0) and 1,590,200 on MNIST are one full round,
and equal our fine-tuned row: against it lp-proj saves a factor of 3 and of 133 there (4,620 and
12,000 words). The other compressed baselines send far more in the paper than our fine-tuned rows do
(QSGD 923,350 and 15,966,000 words, DGC 372,000 and 27,579,900; Sketch does not reach the target, or
with 146,026,720), and its factor of a thousand is against such rows; in its public code QSGD and
DGC evaluate one client only. DGC at the paper's last sparsity, 99.9 %, sends a single number of the
610. lp-proj's few words are real; that they bought the accuracy is not shown by these targets.
"""

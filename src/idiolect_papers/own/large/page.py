"""The figures of all runs as large-models.md."""

from __future__ import annotations

from typing import Any

from idiolect.report.format import size

from .cases import BATCH, BLOCKS, CHUNK, DIM, HEARD, MODELS, ROUNDS, STEPS


def page(found: list[dict[str, Any]]) -> str:
    """The whole page."""
    live = sum(f["ratio"] <= 1.5 for f in found)
    resident = sum(f["resident_ratio"] <= 1.5 for f in found)
    within = (
        f"Within 1.5 × named states + activations: {live} of {len(found)} runs by the live peak, "
        f"{resident} by the resident one."
    )
    lines = [HEAD, "", within, BEYOND]
    for model in MODELS:
        mine = [f for f in found if f["model"] == model]
        one = mine[0]
        what = (
            f"{one['data']}, {one['clients']} clients, {one['outputs']} classes, batch {BATCH}, "
            f"d = {one['d']:,}, kernel {one['kernel']}"
        )
        lines += [
            "",
            f"## {model}: {what}",
            "",
            f"| {COLUMNS} |",
            "|" + "---|" * (COLUMNS.count("|") + 1),
            *(line(f) for f in mine),
        ]
    return "\n".join(lines) + "\n"


def line(f: dict[str, Any]) -> str:
    """A run as a row of its table."""
    cells = [
        f["method"],
        "{:.3f} → {:.3f}".format(*f["loss"]),
        "{:.3f} → {:.3f}".format(*f["accuracy"]),
        f"{f['seconds_per_round']:.1f}",
        f"{f['bytes_up_per_message']:,}",
        f"{f['bytes_down_per_message']:,}",
        f"{sum(f['states'].values()) / f['d']:.1f}",
        size(f["activation_bytes"]),
        size(f["live_bytes"]),
        f"{f['ratio']:.2f}",
        size(f["resident_bytes"]),
        f"{f['resident_ratio']:.2f}",
        size(f["projection_bytes"]),
    ]
    return "| " + " | ".join(cells) + " |"


COLUMNS = (
    "method | loss | accuracy | s/round | bytes up | bytes down | named states / d | activations "
    "| live peak | ratio | resident peak | ratio | P"
)
HEAD = f"""# Large models: what they send and how much memory they take

{ROUNDS} rounds, {HEARD} clients heard per round, {CHUNK} rows in flight, {STEPS} gradients per
client and round, one thread. These runs show that the methods work on such models and what they
cost; they are too short to rank anything. Loss and accuracy: each client's own model on its own
test data, before and after. Written by `idiolect reproduce large`.

Step sizes: one for each model, for all methods. On CIFAR-10 the best of 0.01, 0.003, 0.001 and
0.0003 by the validation loss of lp-proj on ResNet-18 (0.89 at 0.001), used for ResNet-34 too; on
text 0.05, the first one tried. FedAvg gains nothing in so few steps on images: its model is the
mean of models that saw two classes each. Its validation loss fell at 0.0003 on ResNet-18 only,
from 2.385 to 2.378, and rose at every other step size. The trial was made because a first pass at
0.003 had raised the test loss on ResNet-34 with every method. pFedMe and lp-proj end alike: at
λ = η = 0.1 the tie hardly acts in so few steps, and they are close to local training. Seconds were
measured on a machine that had other work, and vary by a factor of two and more.

**Bytes** are those of one client's message: 24 + 4 × numbers. FedAvg and pFedMe send the model;
lp-proj sends d_sub = {DIM} numbers, whatever the model. That number is inferred: the lp-proj paper
does not state d_sub for Table 2 (ResNet-34, {BLOCKS} blocks, 10 of 100 clients heard). Its
1.2 × 10⁷ and 1.152 × 10⁷ bytes are 200 and 192 rounds of 60,000; at four bytes per number, up and
down, for 10 clients that is {DIM}, or {DIM // BLOCKS} rows per block. Read as counts of numbers,
which Tables 1 and 5 are, it would be 3,000; but FedAvg's entry would then be 213 rounds, and the
paper stops at 200. Neither reading makes FedAvg's entry a whole number of rounds (53.4 at four
bytes).

**Named states** are the numbers that a round must hold, by the tensors the method itself names
(`states` in experiments/large/measure.py): the server's state and the message down once each; the
message up of every client heard; the private rows of every client; and for each row in flight its
model, its gradient, the private rows it was given and the message it sends. The table gives them in
models (d numbers).

**Live peak** counts the tensors, arrays and messages that the rounds made and that were alive at
once: counted, not sampled. **Activations** are what one gradient of the rows in flight takes
beside its result, counted in the same way. **Resident peak** is what the operating system saw
above the process with model, data and P ready: it includes the work space of the kernels, and
memory that the allocator keeps after it is freed. **Ratio** is (peak − activations) / named
states; where the peak is on the server's side of a round, as FedAvg's is, no activations are alive
then and the ratio flatters. Evaluation is not in these figures. **P** is what the projection
keeps: one block for all (`reuse`; {BLOCKS} blocks of their own would be {DIM // BLOCKS} numbers
per parameter), or one sign per parameter."""
BEYOND = """\
A host across a network, where a round may be asked for twice, also keeps the private rows as they
were before the round: that is `private` once more, and not in these figures."""

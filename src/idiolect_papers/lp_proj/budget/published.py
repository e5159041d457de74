"""Tables 5 and 11 of the lp-proj paper (Han, Li, Lin and Zhang, JMLR 2024), as published."""

from __future__ import annotations

from ...marks import Figure

Published = dict[tuple[str, str], dict[str, Figure]]  # [data set, method] -> by column


def read_published() -> Published:
    """The tables as data.

    >>> {name: str(f) for name, f in read_published()["MNIST", "lp-proj-1"].items()}
    {'accuracy at the budget': '0.982 ± 0.000', 'words to the target': '12,000 ± 0'}
    """
    out: Published = {}
    title = ""
    for line in PUBLISHED.strip().splitlines():
        name, *cells = line.split()
        if "±" not in line:
            title = line.strip()
            continue
        accuracy, words = cells
        out[title, name] = {
            "accuracy at the budget": _figure(accuracy, 3),
            "words to the target": _figure(words, 0),
        }
    return out


def _figure(cell: str, digits: int) -> Figure:
    mean, _, half = cell.partition("±")
    return Figure(None, None, digits) if mean == "*" else Figure(float(mean), float(half), digits)


# accuracy at the budget, "bytes" to the target; * = none
PUBLISHED = """
Synthetic(0, 0)
FedAvg    .625±.006 597800±0
Sketch    .456±.020 *±*
lp-proj-1 .885±.002 4620±0
lp-proj-2 .888±.001 4620±0
LBGM      .815±.007 12200±23578
QSGD      .115±.069 923350±174383
DGC       *±*       372000±186123
Synthetic(1, 1)
FedAvg    .516±.028 523380±34268
Sketch    .554±.017 *±*
lp-proj-1 .892±.002 4620±0
lp-proj-2 .888±.001 4620±0
LBGM      .858±.042 11200±371717
QSGD      .625±.018 46950±905787
DGC       .175±.208 58400±184500
EMNIST
FedAvg    *±*       445851400±16265444
Sketch    *±*       *±*
lp-proj-1 .906±.000 174720±10699
lp-proj-2 .906±.000 196560±6552
LG-FedAvg .071±.016 230786010±6629787
LBGM      *±*       206307624±37552057
QSGD      *±*       173663720±101397671
DGC       *±*       *±*
CIFAR
FedAvg    *±*       392870016±33519046
Sketch    *±*       2271432000±220100908
lp-proj-1 .792±.002 26400±0
lp-proj-2 .790±.002 26400±0
LG-FedAvg *±*       51369296±10550837
LBGM      *±*       4898475±41680525
QSGD      *±*       87514000±24632864
DGC       *±*       25671000±323640
MNIST
FedAvg    *±*       56293080±6828608
Sketch    *±*       146026720±51486427
lp-proj-1 .982±.000 12000±0
lp-proj-2 .982±.000 12000±0
LG-FedAvg .111±.026 763560±55540
LBGM      *±*       1590200±5492558
QSGD      *±*       15966000±4693474
DGC       *±*       27579900±2836077
FASHIONMNIST
FedAvg    *±*       1186531912±52998121
lp-proj-1 .975±.001 144000±0
lp-proj-2 .975±.001 144000±0
LG-FedAvg .892±.010 1725336±118790
LBGM      *±*       51588348±120013474
QSGD      *±*       42696225±252785764
DGC       *±*       133637400±165916659
Synthetic, by volume
FedAvg    .566±.023 250100±18300
Sketch    .484±.085 511392±272179
lp-proj-1 .899±.002 4620±0
lp-proj-2 .898±.002 4620±0
LBGM      .457±.020 429996±56411
QSGD      .587±.072 248835±93494
DGC       .735±.075 184320±9145
"""

"""How often is `idiolect advise` right? `idiolect reproduce advise-accuracy`.

Written down before it was run. A case is a federation with training samples, which the
advice is given, and a large test set, which it never sees. The truth of a case is what its
candidates reach on the test set when they are trained on all training samples, with the compute and
the step sizes of the advice, the mean of three seeds. `tie` is that of the advice: one point of
accuracy, or 1 % of Local's loss.

- The case is *away from the threshold* if in truth Local and the best candidate that federates
  differ by 3 ties or more, and by 4 standard errors or more of a paired comparison on as many
  samples as the federation has to train on: what fewer samples cannot show, no advice can know. It
  is *near* the threshold if they differ by less than one tie. The condition on standard errors was
  added after single cases of other data seeds had been looked at, before the experiment was run;
  the figures for 3 ties alone are shown beside.
- The choice is *right* if in truth no candidate is better than it by more than a tie. "undecided"
  is never right away from the threshold.
- The alternative of Chen, Zheng, Long and Su (FedAvg or Local) is judged in the same way by the
  difference of these two, and right if it names the better one.

Claimed: right in at least 90 % of the cases away from the threshold, and seldom sure near it.
"""

from __future__ import annotations

import time
from pathlib import Path

from idiolect.study.many import finish

from .cases import Sizes
from .measure import CaseJob
from .page import reproduced
from .progress import Bar

RUNS = ".advise-accuracy.jsonl"


def write(folder: Path, sizes: Sizes | None = None, workers: int = 2) -> list[Path]:
    """Advise on every case, compare with the truth, and write the page."""
    began = time.monotonic()
    sizes = sizes or Sizes()
    jobs = [CaseJob(case, sizes.gradients, sizes.seeds) for case in sizes.cases()]
    with Bar(jobs) as bar:
        found = finish(jobs, folder / RUNS, workers, bar.report)
    outcomes = [found[job] for job in jobs]
    paths = reproduced(jobs, outcomes, sizes, time.monotonic() - began).write(folder)
    (folder / RUNS).unlink()
    return paths

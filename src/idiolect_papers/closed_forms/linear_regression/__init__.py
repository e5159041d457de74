"""Federated linear regression in closed form.

From the lp-proj paper (Han, Li, Lin and Zhang, JMLR 2024, Section 4.2 and Appendix B).

- `solutions`: the models that Local, FedAvg, pFedMe, Ditto and lp-proj-2 end with, from the data.

The other three answer before any data are drawn, for the setting of `data.regression.Linear`
(n samples per client, sum_i xi_i xi_i^T = b n I, noise sigma, all clients heard in every round):

- `losses`: expected test losses, the best λ, and which method wins when;
- `attacks`: the same for benign clients when some clients are malicious;
- `fairness`: how unequal the losses of the clients are.

docs/fidelity.md lists where the paper's formulas had to be corrected.

>>> from idiolect.data.sets.regression import Linear
>>> figure1 = Linear()  # n = 200, N = 100, d = 100, b = 1, sigma = 1
>>> spread = attacks.attacked(figure1, spread=0.1, malicious=20, power=100.0**2)
>>> f"{losses.best_lam(figure1, spread):.3g} {losses.lpproj_wins_from(figure1, spread):.3g}"
'0.000246 0.000493'
"""

from . import attacks, fairness, losses, solutions

__all__ = ["attacks", "fairness", "losses", "solutions"]

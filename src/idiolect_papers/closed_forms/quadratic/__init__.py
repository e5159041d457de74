"""The quadratic problems of the FFGG paper (Section 5.1 and Appendix E.1), solved exactly.

f_m(θ, w) = ½ ‖H_m θ - b_m‖² + ½ ‖A_m θ + B_m w - y_m‖², θ shared and w private to each client.

- `generators`: `Quadratic` draws the matrices as the paper says, client by client;
- `problem`: `Problem` holds what was drawn as a few rows per client, with w*_m(θ), F_m(θ), the
  constants of Example 1 and the minimisers in closed form;
- `task`: the same as a `Task` and a `Federation`, so that every method runs on it.

>>> problem = Quadratic(clients=4, samples=30, shared=5, private=3, zeta=1.0).draw()
>>> theta, w = problem.minimiser()
>>> round(problem.norm(theta), 12), tuple(w.shape)
(0.0, (4, 3))

FFGG with exact inner solutions arrives there too; `constants().F` is the true smoothness of F:

>>> import idiolect as il
>>> method = il.Ffgg(part="w.*", lr=1 / problem.constants().F, solver="exact")
>>> settings = {"batching": "full", "dtype": "float64", "sample": 4, "eval_every": 0}
>>> result = il.run(method, problem.task(), problem.federation(), rounds=200, **settings)
>>> found = result.session().server.state["theta"]
>>> bool((found - theta).norm() < 1e-6)
True
"""

from .generators import NORMS, TRUTHS, Quadratic, Raw
from .problem import Constants, Problem
from .task import QuadraticTask

__all__ = ["NORMS", "TRUTHS", "Constants", "Problem", "Quadratic", "QuadraticTask", "Raw"]

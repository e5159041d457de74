"""Methods whose default is no better than Local at equal gradients where collaboration helps.

And why: their pages say the same. A test holds this list to the stored figures.
"""

_SUBSPACE = (
    "21 of 2,410 directions are tied; in the others a client has its own data alone, and Local's "
    "loss. The gain grows with d_sub / d, see below and [choose.md](choose.md)."
)
EXPLAINED = {
    "lp-proj-1": _SUBSPACE,
    "lp-proj-2": _SUBSPACE,
    "ffgg": (
        "the private part, here the whole output layer, is solved for anew from a random start by "
        "20 steps before each use, on 29 samples; more steps and smaller private parts help "
        "(`steps=100`: see its grid, and `local-ffgg`)."
    ),
}

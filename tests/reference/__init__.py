"""Every method once more, in plain NumPy and straight from its paper's pseudo-code.

Client by client and sample by sample, slow and obvious on purpose; the fast methods are compared
with these. Nothing here is drawn at random: mini-batches, sampled clients and the projection matrix
are arguments (`draws` finds out those of a run).

    data        data[i] = (X, y): what client i trains on
    cohorts     cohorts[t]: the clients that are heard in round t
    batches     batches(t, i): the mini-batches of client i in round t, as index arrays
    rates       the learning rate of each round
"""

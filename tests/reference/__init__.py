"""Every method once more, in plain NumPy and straight from its paper's pseudo-code: client by client, sample by sample.

Slow and obvious on purpose; the fast methods are compared with these. Nothing here is drawn at random: mini-batches, sampled
clients and the projection matrix are arguments (`draws` finds out those of a run).

    data        data[i] = (X, y): what client i trains on
    cohorts     cohorts[t]: the clients that are heard in round t
    batches     batches(t, i): the mini-batches of client i in round t, one index array after the other
    rates       the learning rate of each round
"""

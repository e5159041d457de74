"""Byz-VR-MARINA: Gorbunov, Horváth, Richtárik and Gidel 2023, Algorithm 1."""

import numpy as np


def byzvrmarina(model, data, start, anchors, batches, lr, anchor_batches, combine):
    """`anchors[k]`: c_k; `combine`: ARAgg, from a list of vectors to one."""
    x = before = start
    g = np.zeros_like(start)
    spent = np.zeros(len(data), dtype=int)
    for k, anchor in enumerate(anchors):
        sent = []
        for i, (X, y) in enumerate(data):
            batch = batches(k, i)
            if anchor:
                drawn = [next(batch) for _ in range(anchor_batches)]
                g_i = sum(model.gradient(x, X[I], y[I]) for I in drawn) / anchor_batches
            else:
                I = next(batch)
                g_i = g + model.gradient(x, X[I], y[I]) - model.gradient(before, X[I], y[I])
            spent[i] += anchor_batches if anchor else 2
            sent.append(g_i)
        g = combine(sent)
        before = x
        x = x - lr * g
    return {
        "server w": x,
        "server previous": before,
        "server g": g,
        "personal": [x for _ in data],
        "gradients": spent,
    }

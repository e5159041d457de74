"""Byzantine-robust FFGG, Algorithm 5 with E.3's aggregator: the coordinate median of buckets."""

import numpy as np


def byzantine_ffgg(clients, theta, lr, rounds, malicious, orders, size=2):
    """`clients[m]`: what was drawn for client m (H, b, A, B, y). Those in `malicious` send -g.

    `orders[r]`: the clients in the random order in which round r cuts them into buckets.
    """
    for r in range(rounds):
        sent = []
        for m, c in enumerate(clients):
            w = np.linalg.pinv(c.B) @ (c.y - c.A @ theta)  # argmin_w f_m(theta, w)
            # line 4: g_m = F_m(theta)
            g = c.H.T @ (c.H @ theta - c.b) + c.A.T @ (c.A @ theta + c.B @ w - c.y)
            sent.append(-g if m in malicious else g)  # line 7, E.3: they flip the sign
        shuffled = np.stack(sent)[orders[r]]
        buckets = [shuffled[i : i + size].mean(axis=0) for i in range(0, len(sent), size)]
        theta = theta - lr * np.median(buckets, axis=0)  # line 9
    return theta

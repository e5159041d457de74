"""Server optimisers (Reddi et al. 2021): the change w - target is taken for a gradient.

The target is what the clients' mean asks for.
"""

import numpy as np


class Momentum:
    """FedAvgM: v <- m v + change, w <- w - lr v."""

    def __init__(self, lr, momentum):
        self.lr = lr
        self.momentum = momentum
        self.v = 0.0

    def __call__(self, w, target):
        self.v = self.momentum * self.v + (w - target)
        return w - self.lr * self.v


class Adam:
    """FedAdam, with the bias correction of Kingma and Ba 2015, Algorithm 1."""

    def __init__(self, lr, beta1, beta2, eps):
        self.lr = lr
        self.beta1 = beta1
        self.beta2 = beta2
        self.eps = eps
        self.m = 0.0
        self.v = 0.0
        self.t = 0

    def __call__(self, w, target):
        g = w - target
        self.t += 1
        self.m = self.beta1 * self.m + (1 - self.beta1) * g
        self.v = self.beta2 * self.v + (1 - self.beta2) * g**2
        m = self.m / (1 - self.beta1**self.t)
        v = self.v / (1 - self.beta2**self.t)
        return w - self.lr * m / (np.sqrt(v) + self.eps)

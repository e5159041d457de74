"""SlowMo: Wang, Tantia, Ballas and Rabbat 2020, Algorithm 1, as the server of FedAvg."""

import numpy as np


class SlowMomentum:
    """u <- β u + (x_t - x_{t,τ}) / γ_t, then x_{t+1} = x_t - α γ_t u; `rates` are the γ_t."""

    def __init__(self, rates, alpha, beta):
        self.rates = iter(rates)
        self.alpha = alpha
        self.beta = beta
        self.u = 0.0

    def __call__(self, w, target):
        gamma = next(self.rates)
        self.u = self.beta * self.u + (w - target) / gamma
        return w - self.alpha * gamma * np.asarray(self.u)

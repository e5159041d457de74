"""Schedules and recursions of the convergence theorems of lp-proj, line by line from the paper."""

import math


def theorem14(t, mu_F, zeta, beta, R, D, everyone):
    """η_t, ν_t and the number of which D_t is the next whole one."""
    eta = 8 / (beta * R * mu_F * (zeta + t))
    if everyone:  # S = N
        return eta, 8 / (mu_F * beta**2 * (zeta + t) ** 2), mu_F * beta**2 * (zeta + t) ** 2 / D
    return eta, 8 / (mu_F * (zeta + t)), mu_F * (zeta + t) / D


def theorem15(t, lam, beta, R, D, everyone):
    slow = 90 * lam**2 * lam  # 90 λ² L_F, L_F = λ
    if everyone:
        eta = 1 / (beta ** (1 / 3) * R * slow * (t + 1) ** (1 / 3))
        nu = 1 / (slow * beta ** (2 / 3) * (t + 1) ** (2 / 3))
        return eta, nu, 1 / (nu * D)
    eta = 1 / (beta * R * slow * math.sqrt(t + 1))
    nu = 1 / (slow * math.sqrt(t + 1))
    return eta, nu, 1 / (nu * D)


def bound14(T, mu, mu_F, lam, s, zeta, beta, N, S, noise, diversity, start, plan):
    """The recursion before (32); plan(t) gives ν_t and D_t."""
    L_F = lam
    kappa_F = L_F / mu_F
    bound = start
    for t in range(T):
        nu, D = plan(t)
        eta = 8 / (mu_F * (zeta + t))  # η̃_t
        delta = 2 * (1 + s) ** 2 / mu**2 * (noise / D + nu)
        C1 = 10 * lam**2 / mu_F
        C2 = 6 * diversity * (N / S - 1) / (N - 1)
        C3 = 280 * kappa_F * L_F * diversity
        C4 = 200 * kappa_F * L_F * lam**2
        bound = (1 - mu_F * eta / 2) * bound + eta * delta * C1 + eta**2 * C2
        bound += eta**3 / beta**2 * C3 + eta**3 / beta**2 * delta * C4
    return bound


def bound15(T, lam, s, L, beta, N, S, noise, diversity, start, plan):
    """(33); plan(t) gives η̃_t, ν_t and D_t."""
    L_F = lam
    C5, C6 = 40 * L_F**2 * lam**2, 84 * L_F**2 * diversity
    C7, C8 = 5 * L_F * diversity * (N / S - 1) / (N - 1), 2 * lam**2
    total = sum(plan(t)[0] for t in range(T))
    value = 4 * start / total
    for t in range(T):
        eta, nu, D = plan(t)
        room = (1 - s) ** 4 * lam - (1 + s) ** 2 * L
        delta = 2 * (1 + s) ** 6 / room**2 * (noise / D + nu)
        terms = eta**3 * delta / beta**2 * C5 + eta**3 / beta**2 * C6 + eta**2 * C7
        value += 4 * (terms + eta * delta * C8) / total
    return value

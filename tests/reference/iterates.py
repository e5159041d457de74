"""Weights and averages of iterates as the theorems of the lp-proj paper define them."""


def geometric_average(w, rate):
    """Theorem 9: w̄_T = sum α_t w_t / A_T, α_t = (1 - rate)^-(t+1), A_T = sum α_t."""
    alpha = [(1 - rate) ** -(t + 1) for t in range(len(w))]
    total = sum(alpha)
    return sum(a * row for a, row in zip(alpha, w, strict=True)) / total


def chances(steps):
    """Theorem 15: P(t* = t) = η_t / sum η."""
    return [step / sum(steps) for step in steps]


def drawn(chance, uniform):
    """The t* that one uniform number stands for: where the sum of chances passes it."""
    so_far = 0.0
    for t, part in enumerate(chance):
        so_far += part
        if uniform < so_far:
            return t
    return len(chance) - 1

"""Linear regression with half the squared error, by hand: one output, W then b."""

import numpy as np


class Linear:
    def outputs(self, x, X):
        return X @ x[:-1] + x[-1]

    def loss(self, x, X, y):
        return 0.5 * np.mean((self.outputs(x, X) - y) ** 2)

    def gradient(self, x, X, y):
        return design(X).T @ (self.outputs(x, X) - y) / len(y)

    def hessian_product(self, x, v, X, y):
        return design(X).T @ (design(X) @ v) / len(y)


def design(X):
    return np.column_stack([X, np.ones(len(X))])


def least_squares(x, private, X, y):
    """x with its private coordinates replaced by those that fit y best, the others held."""
    A = design(X)
    rest = np.setdiff1d(np.arange(len(x)), private)
    best = x.copy()
    best[private] = np.linalg.lstsq(A[:, private], y - A[:, rest] @ x[rest], rcond=None)[0]
    return best

"""FedAvg in FedJAX: its default back end in this process, compiled by XLA for one thread.

The evaluation on the pooled test data is compiled too. FedJAX needs versions of JAX and NumPy that
nothing else here shares, hence an environment of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from .peers import Marks
from .workloads import CLASSES, WORKLOADS

# shapes of parameters; convolutions are height x width x in x out, on images with channels last,
# which is what XLA is fastest with on a CPU
SHAPES = {
    "mlp": [(784, 100), (100, CLASSES)],
    "lenet": [(5, 5, 3, 6), (5, 5, 6, 16), (400, 120), (120, 84), (84, CLASSES)],
}
PIECE = 1000  # samples evaluated at once


def start(key: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights and biases, of PyTorch's default size."""
    rng = np.random.default_rng(0)
    bounds = [np.prod(s[:-1]) ** -0.5 for s in SHAPES[key]]
    return [
        (rng.uniform(-b, b, s).astype(np.float32), rng.uniform(-b, b, s[-1]).astype(np.float32))
        for s, b in zip(SHAPES[key], bounds, strict=True)
    ]


def model() -> Callable:
    import jax
    import jax.numpy as jnp
    from jax import lax

    def apply(parameters, x):  # -> log-probabilities
        for i, (w, b) in enumerate(parameters):
            if w.ndim == 4:
                x = (
                    lax.conv_general_dilated(
                        x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
                    )
                    + b
                )
                x = lax.reduce_window(
                    jax.nn.relu(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
                )
            else:
                x = x.reshape(len(x), -1) @ w + b
                x = jax.nn.relu(x) if i + 1 < len(parameters) else x
        return jax.nn.log_softmax(x)

    return apply


def main(key: str, rounds: int) -> None:
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import fedjax
    import jax
    import jax.numpy as jnp

    work = WORKLOADS[key]
    marks = Marks()
    apply = model()
    train_x, train_y, test_x, test_y = (t.numpy() for t in work.data())
    if len(work.shape) == 3:
        train_x, test_x = (np.ascontiguousarray(np.moveaxis(x, 2, -1)) for x in (train_x, test_x))
    clients = {b"%03d" % k: {"x": train_x[k], "y": train_y[k]} for k in range(work.clients)}
    tests = list(
        zip(
            *(
                np.array_split(t.reshape(-1, *t.shape[2:]), -(-test_y.size // PIECE))
                for t in (test_x, test_y)
            ),
            strict=True,
        )
    )

    def loss(parameters, batch, rng):
        return -jnp.take_along_axis(apply(parameters, batch["x"]), batch["y"][:, None], 1).mean()

    @jax.jit
    def score(parameters, x, y):
        out = apply(parameters, x)
        return (out.argmax(1) == y).sum(), -jnp.take_along_axis(out, y[:, None], 1).sum()

    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(work.method.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=1, drop_remainder=False),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(
        fedjax.InMemoryFederatedData(clients), work.heard, seed=0
    )
    state = algorithm.init([(jnp.asarray(w), jnp.asarray(b)) for w, b in start(key)])
    for _ in range(rounds + 1):
        state, _ = algorithm.apply(state, sampler.sample())
        hits, total = np.sum([jax.device_get(score(state.params, x, y)) for x, y in tests], axis=0)
        marks.add(float(hits) / test_y.size, float(total) / test_y.size)
    marks.write()

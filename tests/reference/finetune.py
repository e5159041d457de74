"""Fine-tuning: some SGD steps at each client on whatever model it was given."""


def finetune(model, data, personal, batches, lr, steps):
    """`batches(i)`: the mini-batches that client i draws before use."""
    tuned = []
    for i, (X, y) in enumerate(data):
        batch = batches(i)
        x = personal[i].copy()
        for _ in range(steps):
            I = next(batch)
            x = x - lr * model.gradient(x, X[I], y[I])
        tuned.append(x)
    return tuned

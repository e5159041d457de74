"""A task: model and loss as functions of rows x[K, d]."""

"""A host: data and private rows of some clients, and the evaluation of their models."""

"""Mutation testing: do the tests notice when the code is another?

    python -m benchmarks.mutation                      # all modules of TARGETS
    python -m benchmarks.mutation wire.ledger          # some of them
    python -m benchmarks.mutation --sample 40 --seed 1 # so many mutants of each, drawn at random

Mutants are made by the operators of Cosmic Ray. torch is imported once per module: tests are
collected, then every mutant is a fork in which the code of one function is replaced in place, and
the tests that run the changed line are run, the fast ones first, until one fails.
"""

"""A rule acts once per message, however many parts the message has.

SCAFFOLD, for example, sends a change of the model and a change of its control variate. The papers
of the rules know one vector per client: Krum, say, takes the whole message of one client, and not
the model of one and the control variate of another.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.types import State
from .rule import Rule


def combine_message(
    rule: Rule, up: State, weights: Tensor, *, key: int = 0, state: State | None = None
) -> tuple[State, State]:
    """One vector per part of the messages up[name][S, m], and the rule's state after the round.

    A rule that treats every coordinate by itself runs part by part. Any other gets all parts, in
    the order of their names, as one vector per client. `state` is what `rule.blank` made or the
    last round returned; None keeps no history.

    >>> from idiolect.server.rules import parse_rule
    >>> model = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.0]])
    >>> variate = torch.tensor([[7.0], [7.1], [7.2], [7.0], [7.0]])
    >>> combined, _ = combine_message(
    ...     parse_rule("krum(f=1)"), {"w": model, "c": variate}, torch.ones(5)
    ... )
    >>> {name: round(row.item(), 3) for name, row in combined.items()}  # both of client 1
    {'c': 7.1, 'w': 0.1}
    """
    history = state or {}
    names = sorted(up)
    if not names:
        return {}, history
    if len(names) == 1:
        row, history = rule.combine_with_state(up[names[0]], weights, history, key=key)
        return {names[0]: row}, history
    sizes = [up[name].shape[1] for name in names]
    if rule.by_coordinate and not rule.server(sum(sizes)):
        return {name: rule(up[name], weights, key=key) for name in names}, history
    rows = torch.cat([up[name] for name in names], dim=1)
    row, history = rule.combine_with_state(rows, weights, history, key=key)
    pieces = zip(names, row.split(sizes), strict=True)
    # Copies: tensors that share memory cannot be written to one checkpoint.
    return {name: piece.to(up[name].dtype, copy=True) for name, piece in pieces}, history

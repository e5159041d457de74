"""The rule of `recorded` for LSTM layers: one backward pass through time, written by hand.

The derivative by a step's gates is one row for both weights: with the inputs of the step, and with
what the step before gave. Torch's own layer runs forward; its gates are computed again from its
outputs, for all steps in one product, so that little is done step by step.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .recorded import MatrixUse, Record, SumUse, Unrecorded, _Call, plain, recorded, rule


@rule(torch.lstm)
def lstm(
    x: Tensor,
    state: Any,
    weights: Any,
    has_biases: bool = True,
    layers: int = 1,
    dropout: float = 0.0,
    train: bool = True,
    bidirectional: bool = False,
    batch_first: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """All layers and directions, as `torch.lstm` has them."""
    per_cell = 4 if has_biases else 2
    directions = 2 if bidirectional else 1
    if not isinstance(state, (tuple, list)) or len(weights) != per_cell * layers * directions:
        raise Unrecorded("an LSTM of packed sequences, or with projections")
    record = recorded(*weights)
    h = x.transpose(0, 1) if batch_first else x  # [T, n, inputs]
    if record.clients > 1 or x.dim() != 3 or h.shape[1] != record.samples:
        raise Unrecorded("an LSTM whose first axis is not that of the samples")
    ends: list[tuple[Tensor, Tensor]] = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            cell = layer * directions + direction
            own = weights[per_cell * cell : per_cell * (cell + 1)]
            start = state[0][cell], state[1][cell]
            values = h.flip(0) if direction else h
            out, *end = _cell(record, values, start, own)
            outputs.append(out.flip(0) if direction else out)
            ends.append((end[0], end[1]))
        h = torch.cat(outputs, 2) if bidirectional else outputs[0]
        if dropout and train and layer < layers - 1:
            h = F.dropout(h, dropout)
    hidden, cells = (torch.stack(parts) for parts in zip(*ends, strict=True))
    return (h.transpose(0, 1) if batch_first else h), hidden, cells


def _cell(
    record: Record, x: Tensor, start: tuple[Tensor, Tensor], weights: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer in one direction: outputs [T, n, H], and where it ends."""
    call = _Call()
    of_input, of_state, *biases = (plain(w) for w in weights)
    bias = biases[0] + biases[1] if biases else None
    out, h, c = _Through.apply(x, *start, of_input, of_state, bias, record.anchor, call)
    before = torch.cat([start[0].detach().unsqueeze(0), out.detach()[:-1]])

    def by_sample(t: Tensor) -> Tensor:
        return t.transpose(0, 1)  # [T, n, ...]

    for w, a in ((weights[0], record.activation(x)), (weights[1], before)):
        record.add(w, MatrixUse(record, call, by_sample(a), tuple(w.shape), lambda t: t))
    for b in weights[2:]:
        record.add(b, SumUse(record, call, tuple(b.shape)))
    return out, h, c


class _Through(torch.autograd.Function):
    """x[T, n, inputs] -> outputs [T, n, H], the last of them and the last cells; by given weights.

    i, f, g, o are the gates; c_t = f c_{t-1} + i g and h_t = o tanh(c_t).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h: Tensor,
        c: Tensor,
        of_input: Tensor,
        of_state: Tensor,
        bias: Tensor | None,
        anchor: Tensor,
        call: _Call,
    ) -> tuple[Tensor, Tensor, Tensor]:
        weights = [of_input, of_state]
        if bias is not None:
            weights += [bias, torch.zeros_like(bias)]
        state = (h.unsqueeze(0).contiguous(), c.unsqueeze(0).contiguous())
        options = (bias is not None, 1, 0.0, False, False, False)
        out, last_h, last_c = torch.lstm(x, state, weights, *options)
        ctx.save_for_backward(x, h, c, out, of_input, of_state, bias)
        ctx.call = call
        return out, last_h[0].clone(), last_c[0].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_out: Tensor, by_h: Tensor, by_c: Tensor) -> tuple:
        x, h, c, out, of_input, of_state, bias = ctx.saved_tensors
        before = torch.cat([h.unsqueeze(0), out[:-1]])
        z = F.linear(x, of_input, bias) + F.linear(before, of_state)  # [T, n, 4 H]
        i, f, g, o = z.chunk(4, 2)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        cells = [c]
        for forget, new in zip(f, i * g, strict=True):
            cells.append(torch.addcmul(new, forget, cells[-1]))
        c_before, c_after = torch.stack(cells[:-1]), torch.stack(cells[1:])
        t = c_after.tanh()
        # ∂c_t/∂(i, f, g before their functions), ∂h_t/∂(o before its function), ∂h_t/∂c_t
        of_cell = torch.stack([g * i * (1 - i), c_before * f * (1 - f), i * (1 - g * g)], 2)
        of_gate = t * o * (1 - o)
        of_tanh = o * (1 - t * t)
        delta = torch.empty(*z.shape[:2], 4, z.shape[2] // 4, dtype=z.dtype, device=z.device)
        dc = by_c
        dh = by_h
        for s in range(len(x) - 1, -1, -1):
            dh = dh + by_out[s]
            dc = torch.addcmul(dc, dh, of_tanh[s])
            torch.mul(dc.unsqueeze(1), of_cell[s], out=delta[s, :, :3])
            torch.mul(dh, of_gate[s], out=delta[s, :, 3])
            dh = delta[s].flatten(1) @ of_state
            dc = dc * f[s]
        delta = delta.flatten(2)
        ctx.call.delta = delta.transpose(0, 1)
        by_x = delta @ of_input if ctx.needs_input_grad[0] else None
        return by_x, dh, dc, None, None, None, None, None

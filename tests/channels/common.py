"""Sending rows through a channel and looking at what arrives."""

import numpy as np
import torch

from idiolect.channels import Form, parse_channel
from idiolect.core import streams
from idiolect.wire.ragged import Ragged, Reader

CHANNELS = (
    "none",
    "clip(norm=2.0)",
    "half",
    "half(kind=bfloat16)",
    "int8",
    "int8(bucket=7, rounding=stochastic)",
    "qsgd",
    "qsgd(levels=2, bucket=7)",
    "qsgd(levels=10, bucket=7, norm=inf)",
    "qsgd(levels=300)",
    "qsgd(coding=elias)",
    "qsgd(levels=2, bucket=7, coding=elias)",
    "topk(share=0.1)",
    "randomk(share=0.2)",
    "randomk(share=0.2, unbiased=False)",
    "sign",
    "sign(layers=True)",
    "sign(scale=none)",
    "dgc(sparsity=0.8)",
    "dgc(sparsity=0.8, layers=True, clip=1.0, warmup=0)",
    "topk(share=0.3) + qsgd(bucket=16)",
    "topk(share=0.3) + qsgd(bucket=16, coding=elias)",
    "feedback + topk(share=0.1) + half",
    "clip + qsgd",
    "dgc(sparsity=0.9) + half",
    "feedback + sign",
    "randomk(share=0.5) + topk(share=0.5) + int8",
)


def keys(K: int, round: int = 0) -> np.ndarray:
    return streams.keys(3, "channel", round, streams.name_keys([f"client {k}" for k in range(K)]))


def form(n: int, round: int = 0, dtype: torch.dtype = torch.float32) -> Form:
    return Form(n, tuple(sorted({0, n // 3, n})), round, dtype)


def start(chain, K: int, form: Form) -> dict[str, torch.Tensor]:
    return {
        name: torch.zeros(K, size, dtype=form.dtype)
        for name, size in chain.kept("client", form).items()
    }


def send(text: str, x: torch.Tensor, form: Form, state=None, key=None):
    """What arrives, the clients' rows after it, the bytes; every row arrives whole."""
    chain = parse_channel(text)
    state = start(chain, len(x), form) if state is None else state
    body, state, _ = chain.encode(x, state, keys(len(x), form.round) if key is None else key, form)
    out, reader = receive(text, body, form)
    assert reader.finished().all() and (body.lengths <= chain.limit(form)).all()
    return out, state, body


def receive(text: str, body: Ragged, form: Form) -> tuple[torch.Tensor, Reader]:
    reader = Reader(body)
    out, _ = parse_channel(text).decode(reader, {}, form)
    assert out.shape == (len(body), form.n) and out.dtype == form.dtype
    return out, reader

"""Memory of personal adapters: `python -m benchmarks.adapters`.

Sixteen clients, each with LoRA of its own on one frozen transformer of four layers in bfloat16.
Here a client is a row of adapters beside the base, which is held once; elsewhere it is a module.
Counted are the bytes of all tensors that are alive, at the peak of a round and after it.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import nn

import idiolect as il
from idiolect_papers.own.memory import Live

CLIENTS = 16
VOCABULARY = 8_000
LENGTH = 32
BATCH = 4


def decoder(layers: int, width: int) -> nn.Module:
    """A frozen GPT-2 in bfloat16 with float32 LoRA of rank 8 at its attention."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=width,
        n_layer=layers,
        n_head=8,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    base = transformers.GPT2LMHeadModel(config).to(torch.bfloat16)
    lora = LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True)
    return get_peft_model(base, lora)


def federation() -> il.Federation:
    """Two mini-batches of random tokens per client."""
    noise = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (CLIENTS * 2 * BATCH, LENGTH + 1), generator=noise)
    clients = [i % CLIENTS for i in range(len(tokens))]
    inputs = {"input_ids": tokens[:, :-1]}
    return il.Federation.from_arrays(inputs, tokens[:, 1:], clients, classes=VOCABULARY)


def rows(model: nn.Module, data: il.Federation) -> Any:
    """A round of Local: a row of adapters per client, one client at work at a time."""
    return il.run("local:steps=1", model, data, rounds=1, batch=BATCH, chunk=1, eval_every=0)


def modules(model: nn.Module, data: il.Federation) -> Any:
    """The same step by a module per client."""
    copies = [copy.deepcopy(model) for _ in range(data.clients)]
    for k, module in enumerate(copies):
        x, y = data.part(k, "train")
        scores = module(input_ids=x["input_ids"][:BATCH]).logits
        loss = nn.functional.cross_entropy(scores.flatten(0, 1).float(), y[:BATCH].flatten())
        loss.backward()
        with torch.no_grad():
            for p in module.parameters():
                if p.grad is not None:
                    p -= 0.1 * p.grad
                    p.grad = None
    return copies


def measure(
    work: Callable[[nn.Module, il.Federation], Any], layers: int, width: int
) -> tuple[int, int]:
    """Bytes alive at the peak of the work and after it, the model's own among them."""
    data = federation()
    with Live() as live:
        model = decoder(layers, width)
        result = work(model, data)
        after = live.now
    del result
    return live.peak, after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()
    torch.set_num_threads(1)  # tensors are seen in this thread
    model = decoder(options.layers, options.width)
    frozen = sum(p.nbytes for p in model.parameters() if not p.requires_grad)
    adapter = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    print(f"base {frozen / 1e6:.1f} MB in bfloat16, adapter {adapter / 1e6:.2f} MB in float32")
    print(f"base and {CLIENTS} adapters: {(frozen + CLIENTS * adapter) / 1e6:.1f} MB")
    for title, work in {"rows of adapters": rows, "a module per client": modules}.items():
        peak, after = measure(work, options.layers, options.width)
        print(f"{title:20} {after / 1e6:8.1f} MB held {peak / 1e6:8.1f} MB at the peak")


if __name__ == "__main__":
    main()

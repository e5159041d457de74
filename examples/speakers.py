"""Personalise a language model for 30 speakers: `python examples/speakers.py`.

`--texts shakespeare`: the speakers are the 30 roles of Shakespeare's plays that say most
(`idiolect data get shakespeare` fetches them). `--texts docstrings` needs no download: a speaker is
a module of Python's own library (argparse speaks of parsers, turtle of angles). What all others say
pre-trains a small GPT-2 of characters. Then the base is frozen, peft adds LoRA of rank 4, and ways
to train it are compared: every speaker alone, one adapter for all, and two in which a part is each
speaker's own. It needs transformers and peft: pip install 'idiolect[language]'.
"""

from __future__ import annotations

import argparse
import ast
import json
import sysconfig
import time
from pathlib import Path

import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import nn

import idiolect as il

CHARACTERS = 97  # printable ASCII, and one for every other sign
LENGTH = 64  # characters in a window
LETTERS = 4_000  # of one speaker
METHODS = {  # title -> method, and its share of the rounds
    "Local adapters": ("local:steps={steps}", 1),
    "Local, fewer gradients": ("local:steps={steps}", 1 / 3),
    "one shared adapter": ("fedit:steps={steps}", 1),
    "A shared, B personal": ("fedsa-lora:steps={steps}", 1),
    # two adapters take twice as many gradients in a round
    "two adapters": ("dual-lora:steps={steps},private_steps={steps}", 1 / 2),
}


def docstrings(path: Path) -> str:
    """All docstrings of a Python file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_bytes())
    texts = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    return "\n\n".join(text for text in texts if text)


def texts_by_module() -> dict[str, str]:
    """Module of Python's library -> its docstrings."""
    library = Path(sysconfig.get_path("stdlib"))
    return {path.stem: docstrings(path) for path in sorted(library.glob("*.py"))}


def texts_by_role() -> dict[str, str]:
    """Role of a play of Shakespeare's -> what it says."""
    speeches: dict[str, list[str]] = {}
    with open(il.data.get("shakespeare") / "shakespeare.jsonl", encoding="ascii") as lines:
        for speech in map(json.loads, lines):
            speeches.setdefault(f"{speech['play']} {speech['role']}", []).append(speech["text"])
    return {role: "\n\n".join(texts) for role, texts in speeches.items()}


SPEAKERS = {"docstrings": texts_by_module, "shakespeare": texts_by_role}


def characters(text: str) -> list[int]:
    """The tokenizer: a number per character."""
    return [ord(sign) - 31 if sign.isascii() and sign.isprintable() else 0 for sign in text]


def small_decoder() -> nn.Module:
    """A GPT-2 of two layers, as transformers makes it."""
    config = transformers.GPT2Config(
        vocab_size=CHARACTERS,
        n_positions=LENGTH,
        n_embd=96,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def pretrain(model: nn.Module, text: str, steps: int, batch: int = 32) -> float:
    """An ordinary loop of AdamW on random windows; the mean loss of the last tenth of the steps."""
    stream = torch.tensor(characters(text))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(steps):
        starts = torch.randint(0, len(stream) - LENGTH - 1, (batch, 1))
        windows = stream[starts + torch.arange(LENGTH + 1)]
        scores = model(input_ids=windows[:, :-1]).logits
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    last = losses[-max(1, steps // 10) :]
    return sum(last) / len(last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", choices=SPEAKERS, default="docstrings")
    parser.add_argument("--speakers", type=int, default=30)
    parser.add_argument("--pretraining", type=int, default=600, help="steps of pre-training")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=4, help="steps per round")
    parser.add_argument("--lr", type=float, nargs="+", default=[0.003, 0.01], help="of Adam")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)

    texts = SPEAKERS[options.texts]()
    names = sorted(texts, key=lambda name: -len(texts[name]))[: options.speakers]
    others = "\n\n".join(text for name, text in texts.items() if name not in names)
    base = small_decoder()
    start = time.perf_counter()
    loss = pretrain(base, others, options.pretraining)
    print(
        f"base: {sum(p.numel() for p in base.parameters()):,} parameters, {len(others):,} "
        f"characters, loss {loss:.3f}, {time.perf_counter() - start:.0f} s"
    )

    federation = il.Federation.from_texts(
        {name: texts[name][:LETTERS] for name in names},
        characters,
        length=LENGTH,
        vocabulary=CHARACTERS,
    )
    lora = LoraConfig(r=4, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
    task = il.Task(get_peft_model(base, lora))
    print(federation)
    print(f"trained: {task.d:,} numbers per speaker")

    settings = {
        "batch": 8,
        "optimizer": "adam",
        "optimizer_state": "private",
        "metrics": "perplexity",
    }
    untrained = il.run("local:steps=0", task, federation, rounds=1, metrics="perplexity")
    rows = [("the base as it is", untrained, 0.0)]
    for title, (text, share) in METHODS.items():
        rounds = max(1, round(share * options.rounds))
        method = text.format(steps=options.steps)
        begin = time.perf_counter()
        trials = {}
        for lr in options.lr:
            rates = f",lr={lr}" + (f",private_lr={lr}" if "dual" in text else "")
            trials[method + rates] = il.run(
                method + rates, task, federation, rounds=rounds, **settings
            )
        best = min(trials, key=lambda name: trials[name].over_seeds("loss", "valid")[0])
        result = il.run(best, task, federation, rounds=rounds, seeds=options.seeds, **settings)
        rows.append((title, result, time.perf_counter() - begin))

    print(f"\n{'':23}{'perplexity':>16}{'worst 10 %':>11}{'accuracy':>9}{'gradients':>10}", end="")
    print(f"{'kB sent':>9}{'seconds':>8}  chosen")
    for title, result, seconds in rows:
        summary = result.summary()
        sent = (summary["bytes"]["up"] + summary["bytes"]["down"]) / 1e3
        perplexity = summary["metrics"]["perplexity"]
        half = il.interval(result.over_seeds("perplexity"))
        figure = f"{perplexity['mean']:.3f}" + (f" ± {half:.3f}" if half is not None else "")
        print(
            f"{title:23}{figure:>16}{perplexity['worst10']:11.3f}"
            f"{summary['accuracy']['mean']:9.3f}{summary['gradients_per_client']:10.0f}"
            f"{sent:9,.0f}{seconds:8.0f}  {result.label}"
        )


if __name__ == "__main__":
    main()

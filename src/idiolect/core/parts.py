"""The parts of a module that words stand for: layers, blocks, norms, biases.

They are found in the module's structure, whoever wrote it. A *layer* is a module with parameters
of its own, together with the normalisation right behind it. A *block* is a module of several
layers that is repeated in an nn.Sequential or nn.ModuleList: the layers of a transformer, the
residual blocks of a ResNet. Blocks with attention in them, or all of the same shapes, are a *stack*
as in a transformer: what comes before it is the embedding, what comes after it the head. First and
last are those in the order of `named_parameters`.

Adapters are those of models/adapters.py and of peft, by their names. Where nothing else is trained,
the words stand for adapters: `block:2` for those in the second block.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from torch import nn

ADAPTER = "*adapter.*"  # the names that models/adapters.py gives, and no others may have
# those that peft gives, layers that it trains as a whole among them
PEFT = ("*.lora_*", "*.modules_to_save.*")
LORA_A = ("*.lora_A.*", "*.lora_embedding_A.*", "*adapter.down")
LORA_B = ("*.lora_B.*", "*.lora_embedding_B.*", "*adapter.up")
ALIKE = 0.75  # the share of its numbers that a block of a stack has in common with the others
CONTAINERS = (nn.Sequential, nn.ModuleList)
LONGEST = 1000  # characters of a pattern; one of many brackets takes the square of them

Names = tuple[str, ...]  # of parameters


@dataclass(frozen=True)
class Parts:
    """The trained parameters of a module, by the parts that they belong to."""

    names: Names = ()
    layers: tuple[Names, ...] = ()
    blocks: tuple[Names, ...] = ()
    stack: tuple[Names, ...] = ()  # those of a transformer; () of a ResNet
    norms: Names = ()
    biases: Names = ()
    adapter: Names = ()

    @property
    def embedding(self) -> Names:
        """What comes before the stack; the first layer where there is none."""
        if not self.stack:
            return self.layers[0] if self.layers else self.names
        return self._outside(self.names[: self.names.index(self.stack[0][0])])

    @property
    def head(self) -> Names:
        """What comes after the stack; the last layer where there is none."""
        if not self.stack:
            return self.layers[-1] if self.layers else self.names
        return self._outside(self.names[self.names.index(self.stack[-1][-1]) + 1 :])

    def _outside(self, names: Names) -> Names:
        inside = {name for block in self.stack for name in block}
        if self.adapter != self.names:
            inside |= {*self.adapter}
        return tuple(name for name in names if name not in inside)

    @property
    def words(self) -> dict[str, Names]:
        """What each word stands for; `block:K` and `layer:K` beside these."""
        return {
            # the papers: the first and the last block of a transformer, "instead of the embedding
            # layer" and "instead of the output layer"; the first and the last layer of others
            "input": self.stack[0] if self.stack else self.embedding,
            "output": self.stack[-1] if self.stack else self.head,
            "embedding": self.embedding,
            "head": self.head,
            "norms": self.norms,
            "biases": self.biases,
            "adapter": self.adapter,
            "lora_A": tuple(n for n in self.adapter if _matches(n, LORA_A)),
            "lora_B": tuple(n for n in self.adapter if _matches(n, LORA_B)),
            "all": self.names,
            "none": (),
        }

    @property
    def numbered(self) -> dict[str, tuple[Names, ...]]:
        """The words that take a number, from 1 on, or from -1 backwards."""
        return {"block": self.blocks, "layer": self.layers}

    def named(self, text: str) -> Names | None:
        """The parameters that a word or a pattern of names chooses; None where it is neither.

        A parameter that is called like a word is meant before the word.
        """
        if text not in self.names:
            if text in self.words:
                return self.words[text]
            word, _, number = text.partition(":")
            if word in self.numbered:
                place = _place(number, len(self.numbered[word]))
                return None if place is None else self.numbered[word][place]
        if len(text) > LONGEST:
            return None
        matches = tuple(n for n in self.names if fnmatch.fnmatchcase(n, text))
        return matches or None

    def known(self) -> str:
        """What would be accepted, for messages."""
        words = [word for word, names in self.words.items() if names or word == "none"]
        for word, parts in self.numbered.items():
            if parts:
                words.append(f"{word}:1" + (f" to {word}:{len(parts)}" if parts[1:] else ""))
        return f"one of {', '.join(words)}, or names of: {', '.join(self.names)}"


def _place(number: str, count: int) -> int | None:
    """A number from 1 to `count`, or from -1 to -`count`, as a position."""
    digits = number.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or not 1 <= int(digits) <= count:
        return None
    return int(number) if number.startswith("-") else int(number) - 1


def parts_of(module: nn.Module, names: Sequence[str]) -> Parts:
    """The parts of a module, of which these parameters count.

    >>> body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten())
    >>> module = nn.Sequential(body, nn.Linear(16, 2))
    >>> parts_of(module, [n for n, _ in module.named_parameters()]).words["input"]
    ('0.0.weight', '0.0.bias', '0.1.weight', '0.1.bias')
    """
    adapter = tuple(n for n in names if is_adapter(n))
    rest = [n for n in names if n not in set(adapter)] or list(names)
    owners = {n: _owner(module, n) for n in rest}
    norms = {o for o in owners.values() if is_norm(module.get_submodule(_inner(module, o)))}
    block_paths = list(blocks_of(module))
    blocks = _members((path for path, _ in block_paths), rest)
    stack = _members((path for path, stacked in block_paths if stacked), rest)
    return Parts(
        tuple(names),
        tuple(_layers(owners, norms)),
        blocks,
        stack,
        tuple(n for n in rest if owners[n] in norms),
        tuple(n for n in rest if "bias" in n.rpartition(".")[2]),
        adapter,
    )


def _members(paths: Iterator[str], names: Sequence[str]) -> tuple[Names, ...]:
    """The parameters of each of these modules that has any."""
    inside = (tuple(n for n in names if n.startswith(f"{path}.")) for path in paths)
    return tuple(members for members in inside if members)


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name belongs to an adapter.

    >>> is_adapter("model.layers.0.q_proj.lora_A.default.weight"), is_adapter("head.adapter.down")
    (True, True)
    """
    return _matches(name, (ADAPTER, *PEFT))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def is_norm(layer: nn.Module) -> bool:
    """Whether a layer normalises: one of torch's, or one that is called so (LlamaRMSNorm)."""
    return not layer._modules and "norm" in type(layer).__name__.lower()


def is_attention(module: nn.Module) -> bool:
    """Whether a module is attention, by torch's class or by its own name."""
    return "attention" in type(module).__name__.lower()


# -- layers --------------------------------------------------------------------------------------
def _owner(module: nn.Module, name: str) -> str:
    """The path of the layer that a parameter belongs to, adapters and parametrisations apart."""
    path = name.rpartition(".")[0]
    for within in (".lora_", ".modules_to_save."):
        path = path.partition(within)[0]
    path = path.removesuffix(".adapter")
    path = path.partition(".parametrizations")[0] if ".parametrizations" in path else path
    outer = path.removesuffix(".layer")
    return outer if path != outer and _is_adapted(module.get_submodule(outer)) else path


def _inner(module: nn.Module, path: str) -> str:
    return f"{path}.layer" if path and _is_adapted(module.get_submodule(path)) else path


def _is_adapted(module: nn.Module) -> bool:
    """Whether a module is a layer with an adapter beside it (models/adapters.py)."""
    return set(module._modules) == {"layer", "adapter"}


def _layers(owners: Mapping[str, str], norms: set[str]) -> Iterator[Names]:
    """The parameters of each layer; the normalisation of the same parent goes with it.

    A parameter of the module itself belongs to no layer, unless it has nothing else.
    """
    only = set(owners.values()) == {""}
    layer: list[str] = []
    parent = None
    for owner, names in groupby(owners, key=owners.__getitem__):
        if not owner and not only:
            continue
        if layer and owner in norms and owner.rpartition(".")[0] == parent:
            layer += names
            continue
        if layer:
            yield tuple(layer)
        layer = list(names)
        parent = owner.rpartition(".")[0]
    if layer:
        yield tuple(layer)


# -- blocks --------------------------------------------------------------------------------------
def blocks_of(module: nn.Module) -> Iterator[tuple[str, bool]]:
    """The paths of the blocks in order, and whether they are of a stack."""
    named_blocks = list(_repeated(module, ""))
    by_class: dict[type, list[nn.Module]] = {}
    for _, block in named_blocks:
        by_class.setdefault(_class(block), []).append(_bare(block))
    stacked = {
        cls: _alike(blocks) or any(map(has_attention, blocks)) for cls, blocks in by_class.items()
    }
    for path, block in named_blocks:
        yield path, stacked[_class(block)]


def _repeated(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Blocks below a module, the outermost ones."""
    children = {name: child for name, child in module._modules.items() if child is not None}
    in_container = isinstance(module, CONTAINERS)
    for name, child in children.items():
        below = f"{path}.{name}" if path else name
        siblings = [c for c in children.values() if _class(c) is _class(child)]
        if in_container and _is_composite(child) and _is_block(child, siblings):
            yield below, child
            continue
        inner = list(_repeated(child, below))
        if inner:
            yield from inner
        elif in_container and _is_composite(child) and has_attention(_bare(child)):
            yield below, child  # a transformer of one block


def _is_block(child: nn.Module, siblings: list[nn.Module]) -> bool:
    """Whether it is one of several; plain containers must be alike, or they are just a grouping."""
    if len(siblings) < 2:
        return False
    return not isinstance(_bare(child), CONTAINERS) or _alike([_bare(s) for s in siblings])


def _bare(module: nn.Module) -> nn.Module:
    """A layer without its adapter."""
    return module.get_submodule("layer") if _is_adapted(module) else module


def _class(module: nn.Module) -> type:
    return type(_bare(module))


def _is_composite(module: nn.Module) -> bool:
    """Whether it has several layers."""
    bare = _bare(module)
    names = [n for n, _ in bare.named_parameters() if not is_adapter(n)]
    return len({_owner(bare, n) for n in names}) > 1


def has_attention(module: nn.Module) -> bool:
    return any(m is not module and is_attention(m) for m in module.modules())


def _alike(blocks: Sequence[nn.Module]) -> bool:
    """Whether blocks have most of their numbers in tensors of the same names and shapes."""
    forms = [{(n, p.shape): p.numel() for n, p in b.named_parameters()} for b in blocks]
    first = forms[0]
    for form in forms[1:]:
        common = sum(count for key, count in form.items() if key in first)
        if common < ALIKE * max(sum(form.values()), sum(first.values())):
            return False
    return True

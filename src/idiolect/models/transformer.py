"""A causal language model: from the tokens up to each position, scores for the next token.

A sample is T tokens (int64) and its targets are the T tokens one place later; outputs are
[B, T, vocabulary]. The blocks are pre-norm (Xiong et al., ICML 2020; GPT-2) with learned positions
and without dropout, so that every kernel can run them:

    h <- h + attention(norm1(h));   h <- h + contract(gelu(expand(norm2(h))))

With V tokens, context T, width w, hidden h and b blocks there are, with tied weights,

    (V + T) w + V + b (4 w^2 + 2 w h + h + 9 w) + 2 w

parameters, and V w more without. What `Task.split` selects: "input" is the first block and "output"
the last one, as in the papers of FFGG and of Pillutla et al.; "embedding" is what comes before the
blocks (with tied weights the output matrix too); "head" is the last norm and the head, of which
only the bias is its own where the weights are tied: each client's token frequencies.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.knobs import SettingError, knob
from .base import Layers, Model


class SmallEmbedding(nn.Embedding):
    """An embedding that starts with standard deviation 0.02, as GPT-2's.

    Tokens and positions add up, and tied weights set the scale of the output layer.
    """

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)


class Embed(nn.Module):
    """Tokens [B, T] to vectors [B, T, width]: what the token is plus where it stands."""

    def __init__(self, vocabulary: int, context: int, width: int) -> None:
        super().__init__()
        self.tokens = SmallEmbedding(vocabulary, width)
        self.positions = SmallEmbedding(context, width)

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.is_floating_point():
            raise SettingError(
                f"inputs must be tokens, whole numbers (int64), for transformer, got {tokens.dtype}"
            )
        length = tokens.shape[-1]
        context = self.positions.num_embeddings
        if length > context:
            raise SettingError(
                f"inputs must be at most {context} tokens for this transformer, got {length}"
            )
        # Indexed and not nn.Embedding's own forward: under vmap that would read a token outside the
        # vocabulary from the next client's embedding. A negative index would count from the end, so
        # negative tokens are moved outside the vocabulary, where they raise an error too.
        tokens = tokens.long()
        tokens = torch.where(tokens < 0, self.tokens.num_embeddings, tokens)
        return self.tokens.weight[tokens] + self.positions.weight[:length]


class Attention(nn.Module):
    """Causal self-attention, with the masked softmax written out so that vmap and jvp take it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, width] -> [B, T, width]
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )  # [B, heads, T, w / heads]
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).masked_fill(later, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then two linear layers at every position, each added to what comes in.

    >>> Block(8, heads=2, hidden=16)(torch.zeros(5, 7, 8)).shape
    torch.Size([5, 7, 8])
    """

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.contract(F.gelu(self.expand(self.norm2(x))))


class Tied(nn.Linear):
    """An output layer whose weights are those of the embedding; the bias is its own."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__(embedding.embedding_dim, embedding.num_embeddings)
        self.weight = embedding.weight

    def reset_parameters(self) -> None:  # the weights are the embedding's to reset
        nn.init.zeros_(self.bias)


@dataclass(frozen=True)
class Transformer(Model):
    """A causal language model of T tokens; `outputs` is the size of the vocabulary."""

    blocks: int = knob(4, "attention blocks", low=1)
    heads: int = knob(4, "attention heads; they divide the width", low=1)
    width: int = knob(256, "features of a token", low=1)
    hidden: int = knob(1024, "features between the two linear layers of a block", low=1)
    tied: bool = knob(True, "whether the output weights are those of the token embedding")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise SettingError(f"heads must divide the width, {self.width}, got {self.heads}")

    def layers(self, inputs: tuple[int, ...], outputs: int) -> Layers:
        if len(inputs) != 1:
            raise SettingError(
                f"inputs must be samples (T,), which are T tokens, for transformer, got {inputs}"
            )
        if outputs < 2:
            raise SettingError(
                "outputs must be the size of the vocabulary, 2 or more, for transformer, got "
                f"{outputs}"
            )
        embed = Embed(outputs, inputs[0], self.width)
        layers: Layers = [("embed", embed)]
        for i in range(1, self.blocks + 1):
            layers.append((f"block{i}", Block(self.width, self.heads, self.hidden)))
        layers.append(("norm", nn.LayerNorm(self.width)))
        head = Tied(embed.tokens) if self.tied else nn.Linear(self.width, outputs)
        return [*layers, ("head", head)]

"""A layer with an adapter, whatever the adapter is."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn


class Adapter(nn.Module):
    """What is added at a layer. All parameters are its own: they are called adapter.*"""

    after: ClassVar[bool] = False  # whether it reads what the layer gives, not what it is given


class Adapted(nn.Module):
    """A layer with an adapter beside it, or after it."""

    layer: nn.Module
    adapter: Adapter

    def __init__(self, layer: nn.Module, adapter: Adapter) -> None:
        super().__init__()
        self.layer = layer
        self.adapter = adapter
        self.training = layer.training
        self.adapter.training = layer.training

    def forward(self, x: Tensor, *others: Any, **named: Any) -> Any:
        y = self.layer(x, *others, **named)
        if isinstance(y, tuple):  # attention, with its weights behind
            return (y[0] + self.adapter(y[0]), *y[1:])
        return y + self.adapter(y if self.adapter.after else x)

    def __getattr__(self, name: str) -> Any:
        """Attributes of the layer can still be read.

        nn.TransformerEncoder reads `self_attn`, a user's code may read `out_features`.
        """
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

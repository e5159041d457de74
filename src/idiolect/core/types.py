"""The types that every room shares."""

from __future__ import annotations

from torch import Tensor

State = dict[str, Tensor]  # server: plain tensors; private rows and messages: leading axis = client

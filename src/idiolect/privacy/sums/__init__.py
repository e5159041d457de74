"""Secure sums: the server learns the sum of a round's messages, and none of them by itself."""

from .grid import Grid
from .refusals import why_not
from .setting import SecureSums

__all__ = ["Grid", "SecureSums", "why_not"]

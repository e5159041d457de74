"""The two consoles: tables on stdout, everything else on stderr."""

from __future__ import annotations

import sys

from rich.console import Console

ERR = Console(stderr=True)
OUT = Console() if sys.stdout.isatty() else Console(width=140)  # a file or a pipe has no width

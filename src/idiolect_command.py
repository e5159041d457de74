"""The `idiolect` command, outside the package: its version is told without importing torch."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command; see `idiolect.cli.main`."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from importlib.metadata import version

        print(version("idiolect"))
        return 0
    from idiolect.cli.main import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())

"""The `idiolect` command, outside the package: its version is told without importing torch."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command; see `idiolect.cli.main`."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from importlib.metadata import version

        try:
            print(version("idiolect"), flush=True)
        except OSError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  or Python tries again as it ends
            return 1
        return 0
    from idiolect.cli.main import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())

"""`idiolect reproduce`: a command of idiolect_papers."""

from __future__ import annotations

from importlib.metadata import entry_points

from ...core.knobs import SettingError


def reproduce(argv: list[str]) -> None:
    """Run a stored experiment again and write its page."""
    for entry in entry_points(group="idiolect.commands", name="reproduce"):
        entry.load()(argv)
        return
    try:
        from idiolect_papers.reproduce import main
    except ModuleNotFoundError:
        raise SettingError(
            "reproduce: the package idiolect_papers is not installed; it comes with idiolect's "
            "source: pip install . in a checkout"
        ) from None
    main(argv)

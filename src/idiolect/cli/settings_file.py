"""A settings file: [method] and [data] name = "...", fields; [run], [task], [model] ..."""

from __future__ import annotations

import tomllib
from typing import Any

from ..core.knobs import SettingError, nearest

SECTIONS = ("method", "run", "task", "data", "model")
MOST = 1 << 20  # bytes; a file of all settings there are has a few thousand


def read_toml(path: str | None, known: tuple[str, ...] = SECTIONS) -> dict[str, Any]:
    """The sections of a settings file, and its list of methods; all empty without one."""
    content = {} if path is None else _content(path)
    names = (*known, "methods") if known == SECTIONS else known
    for section, value in content.items():
        if section not in names:
            raise nearest(section, names, f"config section in {path}")
        if section == "methods":
            if not isinstance(value, list) or not all(isinstance(m, str) for m in value):
                raise SettingError(
                    f'config: methods in {path} is not accepted; a list of texts: ["fedavg", ...]'
                )
        elif not isinstance(value, dict):
            raise SettingError(
                f"config: {section} in {path} is not a section; "
                f"write [{section}] and its settings below"
            )
        elif not isinstance(value.get("name", ""), str):
            raise SettingError(
                f"config: name in [{section}] of {path}: {value['name']!r} is not accepted; text"
            )
    sections = {s: dict(content.get(s, {})) for s in known}
    return sections | {"methods": content.get("methods", [])}


def _content(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            body = file.read(MOST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingError(f"config: cannot read {path}: {reason}") from None
    if len(body) > MOST:
        raise SettingError(f"config: {path} is not accepted; at most {MOST} bytes")
    try:
        return tomllib.loads(body.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise SettingError(
            f"config: {path} is not UTF-8: byte 0x{body[error.start]:02x} in line {line}"
        ) from None
    except RecursionError:
        raise SettingError(f"config: {path} is not accepted; it is nested too deeply") from None
    except ValueError as error:  # of tomllib, or a number of thousands of digits
        raise SettingError(f"config: {path} is not TOML: {error}") from None

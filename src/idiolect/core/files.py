"""Files that hold models or clients' figures: private to the user, whole or not there, read warily.

What is written here is readable by its owner alone (0600 in folders of 0700), has reached the disk
before it has its name, and its name has reached the disk too. What is read may come from anyone:
only regular files, no symbolic links, no more bytes than a bound, no more in them than is expected.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
import secrets
import shlex
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from .documents import decode, sealed, unsealed
from .knobs import SettingError
from .text import csv_cell, warn

FOLDER_MODE = 0o700
FILE_MODE = 0o600
MOST_JSON = 256 << 20  # bytes of a JSON file that is read
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a full disk, a quota, a limit on files

T = TypeVar("T")


def private_folder(path: Path) -> Path:
    """The folder, made with its missing parents for the user alone; a link is refused.

    A folder that is there already keeps its permissions.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     made = private_folder(Path(place) / "runs" / "first")
    ...     oct(made.stat().st_mode & 0o777), made.name
    ('0o700', 'first')
    """
    if path.is_symlink():
        raise SettingError(f"directory: {path} is a symbolic link; a folder itself is accepted")
    missing = []
    folder = path
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for folder in reversed(missing):
        folder.mkdir(FOLDER_MODE, exist_ok=True)
        sync(folder.parent)
    if not path.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(path))
    return path


def private_opener(path: str, flags: int) -> int:
    """For `open(..., opener=private_opener)`: a new file is the user's alone, a link is refused."""
    extra = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    return os.open(path, flags | extra, FILE_MODE)


def write_atomic(path: Path, content: bytes | Iterable[bytes]) -> None:
    """A whole file on the disk, or the one that was there before; for the user alone.

    The content may come in pieces.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     file = Path(place) / "note.txt"
    ...     write_atomic(file, b"first")
    ...     write_atomic(file, b"second")
    ...     file.read_bytes(), [p.name for p in Path(place).iterdir()]
    (b'second', ['note.txt'])
    """
    if path.exists() and not (path.is_file() or path.is_symlink()):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb", opener=private_opener) as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)
    unwritten.pop(path, None)


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """An object as a JSON file with its checksum, which `read_document` reads again."""
    write_json(path, sealed(document))


def write_json(path: Path, value: Any) -> None:
    """A value as a JSON file, atomically. NaN and infinity are refused: see `core.plain`.

    For other programs: what idiolect reads again has a checksum, see `write_document`.
    """
    write_atomic(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_csv(
    path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None
) -> None:
    """Rows as a CSV file, atomically; the columns are those of the first row unless given.

    Texts that a spreadsheet would take for a formula get an apostrophe.
    """
    write_atomic(path, csv_text(rows, columns))


def csv_text(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None, header: bool = True
) -> bytes:
    """Rows as CSV; see `write_csv`.

    >>> csv_text([{"round": 1, "client": "=a"}])
    b"round,client\\r\\n1,'=a\\r\\n"
    """
    columns = columns or list(rows[0] if rows else ())
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    if header:
        writer.writeheader()
    writer.writerows({name: csv_cell(row.get(name)) for name in columns} for row in rows)
    return text.getvalue().encode()


def sync(path: Path) -> None:
    """Make sure that a file, or the names in a folder, are on the disk, where that is possible."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


unwritten: dict[Path, str] = {}  # what is not on the disk so far; the command ends with 1


@contextmanager
def on_disk(
    what: str, path: Path | None, say: Callable[[str], None] = warn, any_error: bool = False
) -> Iterator[None]:
    """Tolerate a full disk, or `any_error` of the system: warn, keep earlier files, continue.

    The path, unless it is None (of a copy of what is in memory), is in `unwritten` until a later
    attempt succeeds.

    >>> with on_disk("the table", Path("table.csv"), print):
    ...     raise OSError(errno.ENOSPC, "No space left on device")
    the table could not be written (No space left on device); earlier files are untouched and the \
run continues
    >>> with on_disk("the table", Path("table.csv")):
    ...     pass
    >>> unwritten
    {}
    """
    try:
        yield
        if path is not None:
            unwritten.pop(path, None)
    except OSError as error:
        if error.errno not in FULL and not any_error:
            raise
        if path is not None:
            unwritten[path] = f"{what} ({error.strerror})"
        say(
            f"{what} could not be written ({error.strerror}); "
            "earlier files are untouched and the run continues"
        )


def disk_is_full(error: BaseException | None) -> bool:
    """Whether an error, or one that it was raised for, is that of a full disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        error = error.__context__
    return False


def lock_file(file: IO[Any], seconds: float = 0.0) -> bool:
    """Lock a file for this process, however it ends; False if another one holds it for so long."""
    end = time.monotonic() + seconds
    while True:
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.05)


def check_regular(path: Path) -> None:
    """Refuse, by OSError, whatever is not a file itself: a link, a folder, a pipe, a device."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(f"{path.name} is not a regular file (links are refused)")


def regular_file(path: str | Path, field: str) -> Path:
    """A user's file, which may be a link; a pipe or a device, which may have no end, is refused.

    One that is not there is left to who opens it.
    """
    file = given_path(str(path), field)
    if file.exists() and not file.is_file():
        raise SettingError(f"{field} must be a regular file, got {str(path)!r}")
    return file


def read_bytes(path: Path, limit: int = MOST_JSON) -> bytes:
    """The content of a regular file of at most `limit` bytes; OSError for anything else."""
    check_regular(path)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(private_opener(str(path), flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path.name} is not a regular file (links are refused)")
        if status.st_size > limit:
            raise OSError(f"{path.name} has {status.st_size} bytes; at most {limit} are read")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(f"{path.name} grows while it is read")
    return content


def sha256_of(path: Path) -> str:
    """SHA-256 of a regular file, in hexadecimal digits."""
    check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(content: bytes) -> Any:
    """JSON in UTF-8 as plain data. ValueError for all else: a key twice, nesting without end.

    NaN and Infinity are read, as Python writes them.

    >>> parse_json(b'{"rounds": 5, "rounds": 6}')
    Traceback (most recent call last):
        ...
    ValueError: the key 'rounds' is there twice
    """
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=_once)
        if b"\\u" in content:
            _refuse_half_characters(value)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def read_document(path: Path, kind: type[T], limit: int = MOST_JSON) -> T:
    """What `write_document` wrote, as a typed object (see `decode`).

    A SettingError names the file and what is wrong: it is damaged, or not as declared.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_document(Path(place) / "a.json", {"seed": "1"})
    ...     read_document(Path(place) / "a.json", dict[str, int])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    idiolect.core.knobs.SettingError: directory: cannot use ...: seed must be a whole number, ...
    """
    try:
        value = parse_json(read_bytes(path, limit))
    except (OSError, ValueError) as error:
        raise SettingError(f"directory: cannot read {path}: {_reason(error)}") from None
    try:
        return decode(unsealed(value), kind)
    except ValueError as error:
        raise SettingError(f"directory: cannot use {path}: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are there once each."""
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {name[:80]!r} is there twice")
            seen.add(name)
    return value


def _refuse_half_characters(value: Any) -> None:
    """Texts with half of a surrogate pair cannot be written again, nor shown."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a text in it is not Unicode") from None


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def given_path(text: str, field: str) -> Path:
    """A path with its "~" expanded; it need not exist.

    >>> given_path("a\\0b", "path")
    Traceback (most recent call last):
        ...
    idiolect.core.knobs.SettingError: path must be a path, got 'a\\x00b': embedded null byte
    """
    try:
        if "\0" in text:
            raise ValueError("embedded null byte")
        path = Path(text).expanduser()
        os.fsencode(path)  # not every locale has every character
        path.exists()  # a name that is too long is an error here
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingError(f"{field} must be a path, got {text!r}: {reason}") from None
    return path


def given_folder(text: str, field: str) -> Path:
    """A folder that is there, or could be made: nothing else has its name or that of a parent."""
    path = given_path(text, field)
    for place in (path, *path.parents):
        if os.path.lexists(place):
            if not place.is_dir():
                raise SettingError(
                    f"{field} must be a folder, got {text!r}: {str(place)!r} is none"
                )
            break
    return path


def resume_command(directory: Path) -> str:
    """The command that continues a run, ready to be pasted.

    >>> resume_command(Path("my run"))
    "idiolect resume 'my run'"
    """
    return f"idiolect resume {shlex.quote(str(directory))}"

"""Files read within bounds, and written whole or not at all.

What is read must be a regular file (or a pipe that is named as one, such as ``/dev/stdin``) of bounded size, in UTF-8.
Files that are read whole may be compressed with gzip if their names end in ``.gz``. What is written goes to a temporary
name in the same folder first and is moved over the old file when it is complete, so that a full disk or an interruption
leaves the old file as it was.

Results that take long to work out are kept in the user's cache folder: safe to delete, never trusted when damaged. A
file is its content and the SHA-256 of it at the end. Its name holds a hash of all that it depends on, so that it is
never out of date; what has not been used for longest goes when there is too much.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import stat
import tempfile
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from rackline.errors import InputError, require

MAX_FILE_BYTES = 256 * 2**20
"""Largest file that is read whole [bytes]."""
_CHUNK_CHARACTERS = 2**16
MAX_LINE_CHARACTERS = 16 * 2**20
"""Longest line of a file that is read line by line [characters]."""
_PIPES = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")


def case_folder() -> Path:
    """Return the folder of the measured cases that rackline ships: in the package, or at the root of a clone."""
    package = Path(__file__).resolve().parent
    inside = package / "cases"
    return inside if inside.is_dir() else package.parents[1] / "cases"


def is_file(name: str | Path) -> bool:
    """Whether there is a regular file of this name; text that no system takes as a name has none."""
    return os.path.isfile(name)


def open_file(path: str | Path, *, what: str, allowed: str, refusal: type[InputError] = InputError) -> int:
    """Open a file for reading and return its descriptor.

    Args:
        path: The file.
        what: What the file is, in the reader's words ("trace", "--stored").
        allowed: What would have been accepted.
        refusal: Kind of error to raise.

    Raises:
        InputError: No such file, a folder, a device, a named pipe, or one that may not be read.
    """
    name = os.fspath(path)
    piped = name.startswith(_PIPES)
    try:
        # a named pipe without a writer would block forever
        number = os.open(name, os.O_RDONLY | (0 if piped else getattr(os, "O_NONBLOCK", 0)))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a file name"
        raise refusal(what=what, given=name, allowed=f"{allowed} ({reason})") from None
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode) and not piped:
        os.close(number)
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device"
        raise refusal(what=what, given=name, allowed=f"{allowed}; this is {kind}")
    return number


def read_text(
    path: str | Path,
    *,
    what: str,
    allowed: str,
    max_bytes: int = MAX_FILE_BYTES,
    refusal: type[InputError] = InputError,
) -> str:
    """Read a whole file as UTF-8, without a byte-order mark; decompress it first if its name ends in ``.gz``.

    Args:
        path: The file.
        what: What the file is, in the reader's words.
        allowed: What would have been accepted.
        max_bytes: Largest size, also after decompression [bytes].
        refusal: Kind of error to raise.

    Raises:
        InputError: As `open_file`; a file that is too large, not UTF-8, or not whole in gzip's form.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_text(Path(folder) / "a.txt", "word", what="--output")
        ...     read_text(Path(folder) / "a.txt", what="page", allowed="a page")
        'word'
    """
    with open(open_file(path, what=what, allowed=allowed, refusal=refusal), "rb") as file:
        try:
            with gzip.open(file) if Path(path).suffix == ".gz" else contextlib.nullcontext(file) as stream:
                data = stream.read(max_bytes + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error):
            cause = "compressed with gzip; this file is damaged or not compressed"
            raise refusal(what=what, given=os.fspath(path), allowed=f"{allowed}, {cause}") from None
    if len(data) > max_bytes:
        limit = f"at most {max_bytes / 2**20:.0f} MiB"
        raise refusal(what=what, given=os.fspath(path), allowed=f"{allowed}; {limit}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refusal(
            what=what, given=os.fspath(path), allowed=f"{allowed} (byte {error.start} is not UTF-8)"
        ) from None


def read_lines(
    path: str | Path, *, what: str, allowed: str, max_characters: int = MAX_LINE_CHARACTERS
) -> Iterator[str]:
    """Read a file line by line as UTF-8, line ends left on; memory does not grow with the file.

    Args:
        path: The file.
        what: What the file is, in the reader's words.
        allowed: What would have been accepted.
        max_characters: Longest line [characters].

    Raises:
        InputError: As `open_file`; a line that is too long; bytes that are not UTF-8.
    """
    number = open_file(path, what=what, allowed=allowed)
    count, characters = 0, 0
    unfinished: list[str] = []
    with open(number, encoding="utf-8-sig", newline="") as stream:
        while True:
            try:
                chunk = stream.read(_CHUNK_CHARACTERS)
            except UnicodeDecodeError:
                raise InputError(
                    what=what, given=os.fspath(path), allowed=f"{allowed} (after line {count} it is not UTF-8)"
                ) from None
            unfinished.append(chunk)
            characters += len(chunk)
            lines: list[str] = []
            if not chunk or "\n" in chunk or "\r" in chunk:
                lines = list(io.StringIO("".join(unfinished), newline=""))
                # the last may go on; a return at its end may be half of a line end
                unfinished = [lines.pop()] if chunk else []
            if characters > max_characters:
                for place, line in enumerate((*lines, "".join(unfinished)), start=count + 1):
                    if len(line) > max_characters:
                        raise InputError(
                            what=what,
                            given=f"a line of more than {max_characters:,} characters",
                            allowed=allowed,
                            where=f"{os.fspath(path)}:{place}",
                        )
            yield from lines
            if not chunk:
                return
            count += len(lines)
            characters = sum(map(len, unfinished))


def parse_json(text: str) -> object:
    """Read JSON; any defect raises the same kind of error.

    Args:
        text: The JSON.

    Raises:
        ValueError: Not JSON, nested too deeply, a key twice, or a whole number of thousands of digits.

    Example:
        >>> parse_json("[" * 100_000)
        Traceback (most recent call last):
        ValueError: nested too deeply
    """
    try:
        return json.loads(text, object_pairs_hook=each_once)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The keys of a JSON object, each of which stands once.

    Raises:
        ValueError: One stands twice, so that nobody knows which counts.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"the key {twice[:60]!r} stands twice")
    return found


def parse_toml(text: str) -> dict[str, Any]:
    """Read TOML; any defect raises the same kind of error.

    What is valid is read by a compiled parser, five times as fast; the parser of Python says what is wrong with the
    rest, by line and column.

    Args:
        text: The TOML.

    Raises:
        ValueError: Not TOML, nested too deeply, or a whole number of thousands of digits.

    Example:
        >>> parse_toml("a = " + "[" * 10_000)
        Traceback (most recent call last):
        ValueError: nested too deeply
    """
    import rtoml

    with contextlib.suppress(rtoml.TomlParsingError):
        return rtoml.loads(text)
    import tomllib

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def toml_tables(path: str, text: str, key: str, form: str, what: str = "") -> list[dict[str, Any]]:
    """Return the tables of a TOML file that has nothing else.

    Raises:
        InputError: no TOML, or another form.
    """
    refused = partial(InputError, what=what or key, allowed=form, where=path)
    try:
        data = parse_toml(text)
    except ValueError as error:
        raise refused(given=str(error)) from None
    tables = data.get(key)
    rows: list[Any] = cast("list[Any]", tables) if isinstance(tables, list) else [None]
    if set(data) != {key} or not all(isinstance(row, dict) for row in rows):
        raise refused(given=", ".join(data) or "an empty file")
    return rows


def shipped_toml(package: str, *names: str) -> dict[str, Any]:
    """A TOML file that stands beside the modules of a package, or in a folder there."""
    import importlib.resources

    return parse_toml(importlib.resources.files(package).joinpath(*names).read_text(encoding="utf-8"))


def write_text(path: str | Path, text: str, *, what: str) -> None:
    """Write a file in UTF-8, line ends as given; see `write_bytes`."""
    write_bytes(path, text.encode("utf-8", errors="surrogatepass"), what=what)


def write_bytes(path: str | Path, data: bytes, *, what: str) -> None:
    """Write a file whole or not at all.

    A regular file is written under a temporary name beside it and moved; its permissions are kept, and a link is
    followed. A device or pipe (``/dev/stdout``) is written to directly.

    Args:
        path: The file.
        data: Its content.
        what: The option that asked for it ("--plot").

    Raises:
        InputError: The file cannot be written; the old one is as it was.
    """
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise unwritable(path, error, what=what) from None


def unwritable(path: str | Path, error: OSError, *, what: str) -> InputError:
    """The error for a file that could not be written.

    Args:
        path: The file.
        error: What the system said.
        what: The option that asked for it.
    """
    reason = error.strerror or type(error).__name__
    return InputError(what=what, given=os.fspath(path), allowed=f"a file that can be written ({reason})")


@contextlib.contextmanager
def replacing(path: str | Path) -> Generator[Path]:
    """Give a temporary path to write to, and move it over `path` when the block ends without an error.

    Args:
        path: The file that is to appear or change.

    Yields:
        Where to write; `path` itself if that is a device or a pipe.

    Raises:
        OSError: As the system says it; nothing is left behind and the old file is as it was.
    """
    target = Path(path)
    with contextlib.suppress(OSError):
        target = target.resolve(strict=True)  # the file behind a link is written, not the link
    existing = _mode_of(target)
    if existing is not None and not stat.S_ISREG(existing):
        if stat.S_ISDIR(existing):
            raise IsADirectoryError(21, "Is a directory", os.fspath(path))
        yield target
        return
    number, name = tempfile.mkstemp(prefix=f".{target.name[:64]}.", suffix=".tmp", dir=target.parent)
    os.close(number)
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, stat.S_IMODE(existing) if existing is not None else 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _mode_of(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except OSError:
        return None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_outputs(
    outputs: Mapping[str, str | Path | None], inputs: Mapping[str, str | Path | None] | None = None
) -> None:
    """Refuse outputs that cannot be written, that are inputs, or that are the same file, before work begins.

    Args:
        outputs: Option and the file it writes; None where the option is not given.
        inputs: Option or argument and the file it reads.

    Raises:
        InputError: An output that is an input, a folder, in a folder that does not exist or that may not be written,
            or the file of another output.
    """
    read = [(what, Path(path)) for what, path in (inputs or {}).items() if path is not None]
    seen: list[tuple[str, Path]] = []
    for what, given in outputs.items():
        if given is None:
            continue
        path = Path(given)
        require(not path.is_dir(), what=what, given=str(given), allowed="a file; this is a folder")
        require(
            path.parent.is_dir(), what=what, given=str(given), allowed=f"a folder that exists; {path.parent} is none"
        )
        regular = not path.exists() or path.is_file()
        require(
            os.access(path.parent if regular else path, os.W_OK) and (not path.exists() or os.access(path, os.W_OK)),
            what=what,
            given=str(given),
            allowed="a file that may be written",
        )
        for other, at in read:
            require(
                not _same(path, at), what=what, given=str(given), allowed=f"another file than {other}, which is read"
            )
        for other, at in seen:
            require(
                not regular or not _same(path, at),
                what=what,
                given=str(given),
                allowed=f"another file than that of {other}",
            )
        seen.append((what, path))


def _same(one: Path, two: Path) -> bool:
    if one.exists() and two.exists():
        return os.path.samefile(one, two)
    return os.path.realpath(one) == os.path.realpath(two)


def toml_text(data: Mapping[str, Any], comments: Iterable[str] = ()) -> str:
    """Plain data as TOML behind lines of comment.

    Args:
        data: what the file says.
        comments: lines at the head of the file.

    >>> print(toml_text(rounded({"name": "a", "overhead_s": 2.34567e-6}), ["Written by a fit."]), end="")
    # Written by a fit.
    name = "a"
    overhead_s = 2.346e-06
    """
    import tomli_w

    return "".join(f"# {line}\n" for line in comments) + tomli_w.dumps(data)


def rounded(value: Any, digits: int = 4) -> Any:
    """Plain data whose floats keep `digits` significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {key: rounded(part, digits) for key, part in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [rounded(part, digits) for part in cast("Sequence[Any]", value)]
    return value


def home_folder() -> Path:
    """Find the user's home folder; a folder that does not exist where the system knows of none, as in containers."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(os.sep, "nonexistent")  # the home of Debian's users without one


def own_folder(variable: str, base: tuple[str, str], name: str, environment: Mapping[str, str] | None = None) -> Path:
    """A folder of the user's own.

    Args:
        variable: that names it.
        base: otherwise, the variable that names the folder it lies in, and where in the home folder that is without it.
        name: of it in there.
        environment: variables; those of the process by default.
    """
    given = os.environ if environment is None else environment
    if chosen := given.get(variable):
        return Path(chosen)
    return Path(given.get(base[0]) or home_folder() / base[1]) / "rackline" / name


MOST_BYTES, MOST_FILES = 16 * 2**20, 1000
"""Of all kept results together [bytes], [count]."""
_DIGEST = 32  # bytes of SHA-256


def kept_folder(environment: Mapping[str, str] | None = None) -> Path:
    """The folder of kept results: RACKLINE_CACHE, else rackline/results in XDG_CACHE_HOME or ~/.cache.

    Args:
        environment: variables; those of the process by default.

    >>> kept_folder({"XDG_CACHE_HOME": "/data"}).as_posix()
    '/data/rackline/results'
    """
    return own_folder("RACKLINE_CACHE", ("XDG_CACHE_HOME", ".cache"), "results", environment)


def kept_name(kind: str, *parts: object) -> str:
    """Name of the file of a result.

    Args:
        kind: what it is, in a word.
        parts: all that it depends on, the code among it.
    """
    return f"{kind}-{_digest(chr(0).join(map(repr, parts)).encode()).hex()[:32]}"


def _digest(content: bytes) -> bytes:
    import hashlib

    return hashlib.sha256(content).digest()


def load_kept(name: str) -> bytes | None:
    """Content of a kept result; None where there is none that is whole."""
    path = kept_folder() / name
    try:
        data = path.read_bytes()
        content = data[:-_DIGEST]
        if _digest(content) != data[-_DIGEST:]:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now
        return content
    except OSError:
        return None


def keep(name: str, content: bytes) -> Path | None:
    """Keep a result, whole or not at all; None where the folder cannot be written."""
    folder = kept_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(folder / name) as temporary:
            temporary.write_bytes(content + _digest(content))
    except OSError:
        return None
    _drop_oldest(folder, name)
    return folder / name


def _drop_oldest(folder: Path, newest: str) -> None:
    """Remove what has not been used for longest, until the rest fits; others may do the same at the same time."""
    found: list[tuple[float, int, Path]] = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                state = path.stat()
                found.append((state.st_mtime, state.st_size, path))
    held, count = sum(size for _, size, _ in found), len(found)
    for _, size, path in sorted(found):
        if held <= MOST_BYTES and count <= MOST_FILES:
            return
        if path.name != newest:
            with contextlib.suppress(OSError):
                path.unlink()
                held, count = held - size, count - 1

"""Repositories of the Hugging Face Hub: their identity, settings of its client, files from the Hub or its cache."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, cast
from urllib.parse import quote

from rackline.errors import HubError, InputError
from rackline.files import home_folder, read_text, write_text

DEFAULT_ENDPOINT = "https://huggingface.co"
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSettings:
    """How the Hub is reached.

    Args:
        endpoint: address of the Hub or of a mirror, without a slash at its end (HF_ENDPOINT).
        cache: folder of huggingface_hub's cache (HF_HUB_CACHE, else HF_HOME/hub).
        summaries: folder in which rackline keeps the tensor headers that it has read.
        offline: whether the network is left alone (HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE).
        timeout_s: how long one answer may take [s] (HF_HUB_ETAG_TIMEOUT).
    """

    endpoint: str
    cache: Path
    summaries: Path
    offline: bool = False
    timeout_s: float = 10.0

    def folder_of(self, name: str) -> Path:
        """Where huggingface_hub's cache has a repository."""
        return self.cache / f"models--{name.replace('/', '--')}"


def hub_settings(*, offline: bool = False, environment: Mapping[str, str] | None = None) -> HubSettings:
    """Settings from the environment, read at each call.

    Args:
        offline: leave the network alone, also where the environment does not say so.
        environment: variables; those of the process by default.

    Example:
        >>> hub_settings(environment={"HF_ENDPOINT": "https://hf-mirror.com/", "HF_HOME": "/data/hf"}).cache.as_posix()
        '/data/hf/hub'
    """
    given = os.environ if environment is None else environment
    home = Path(given.get("XDG_CACHE_HOME") or home_folder() / ".cache")
    hub_home = Path(given.get("HF_HOME") or home / "huggingface").expanduser()
    cache = given.get("HF_HUB_CACHE") or given.get("HUGGINGFACE_HUB_CACHE") or hub_home / "hub"
    switched = (given.get("HF_HUB_OFFLINE") or given.get("TRANSFORMERS_OFFLINE") or "").upper() in _TRUE
    try:
        timeout_s = float(given.get("HF_HUB_ETAG_TIMEOUT") or 10.0)
    except ValueError:
        timeout_s = 10.0
    return HubSettings(
        endpoint=(given.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/"),
        cache=Path(cache).expanduser(),
        summaries=home.expanduser() / "rackline" / "headers",
        offline=offline or switched,
        timeout_s=timeout_s,
    )


_ID = re.compile(r"^[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}$")
_COMMIT = re.compile(r"^[0-9a-f]{40}$")
_RETRIED = (429, 500, 502, 503, 504)
_TRIES = 3
_LONGEST_WAIT_S = 10.0
LIBRARY = "huggingface_hub"
_CLIENTS = ("httpx", "httpx2", "httpcore", "httpcore2", LIBRARY, "requests")  # that it brings, by release
MOST_FILE_BYTES = 256 * 2**20
"""Largest file that is fetched [bytes]; the index of the largest published checkpoint has 11 MB."""
LONGEST_S = 300.0
"""Longest time that one answer of the Hub may take, however slowly its bytes come [s]."""
_MOST_PAGE_BYTES, _MOST_NOTE_BYTES = 16 * 2**20, 4096

Origin = Literal["hub", "cache"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryId:
    """The name of a repository and the revision that is wanted.

    Args:
        name: "org/name".
        revision: branch, tag or commit; "main" by default.
    """

    name: str
    revision: str = "main"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read "org/name" or "org/name@revision"; None for anything else.

        Example:
            >>> RepositoryId.parse("Qwen/Qwen3-8B@v1")
            RepositoryId(name='Qwen/Qwen3-8B', revision='v1')
            >>> RepositoryId.parse("llama-3.1-70b") is None
            True
        """
        name, at, revision = text.partition("@")
        if not _ID.match(name) or ".." in name or "--" in name or name.endswith((".toml", ".json", ".git")):
            return None
        if at and (not revision or len(revision) > 250 or not re.match(r"^[\w./-]+$", revision) or ".." in revision):
            return None
        return cls(name=name, revision=revision or "main")

    def __str__(self) -> str:
        """The identifier as users write it."""
        return self.name if self.revision == "main" else f"{self.name}@{self.revision}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository whose revision is known.

    Args:
        id: as it was asked for.
        name: as the Hub calls it now; differs where the repository was renamed.
        commit: hash of the revision; empty where neither Hub nor cache say.
        origin: what said so, the Hub or its cache.
        elements_by_dtype: elements of all tensors by data type, as the Hub has counted them; empty where it has not.
        settings: how the Hub is reached.
        note: why the cache was used where the Hub was asked first.
        may_fetch: whether files that the cache does not have are fetched.
    """

    id: RepositoryId
    name: str
    commit: str
    origin: Origin
    settings: HubSettings
    elements_by_dtype: dict[str, int] = field(default_factory=dict[str, int])
    note: str = ""
    may_fetch: bool = True

    @property
    def link(self) -> str:
        """Address of its page."""
        return f"{self.settings.endpoint}/{self.name}"

    def file(self, name: str) -> Path | None:
        """A small file of the repository in the cache, fetched if it is not there; None if the repository has none.

        Args:
            name: path inside the repository.

        Raises:
            HubError: the repository is gated, private or out of reach, or the file cannot be had whole.
        """
        from huggingface_hub import (
            hf_hub_download,  # pyright: ignore[reportUnknownVariableType]
            try_to_load_from_cache,
        )
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        local = not self.may_fetch
        if self.commit:
            cached = try_to_load_from_cache(self.name, name, cache_dir=self.settings.cache, revision=self.commit)
            if cached is not None:  # a path, or the mark that there is no such file
                return Path(cached) if isinstance(cached, str) else None

        def download() -> str:
            return hf_hub_download(
                self.name, name, revision=self.commit or self.id.revision, cache_dir=self.settings.cache,
                endpoint=self.settings.endpoint, etag_timeout=self.settings.timeout_s, library_name="rackline",
                local_files_only=local, tqdm_class=_bounded_bar(),
            )  # fmt: skip

        def fetch() -> Path | None:
            try:
                return Path(download() if local else _within(LONGEST_S, download))
            except LocalEntryNotFoundError as error:
                if local:
                    return None
                raise (error.__cause__ or error) from error
            except EntryNotFoundError:
                return None

        return asked(fetch, self.id, self.settings, what=name, busy=())  # huggingface_hub waits itself

    def required(self, name: str) -> Path:
        """A small file that the repository must have.

        Raises:
            HubError: as `file`; the repository, or what the cache holds of it, has no such file.
        """
        found = self.file(name)
        if found is not None:
            return found
        allowed = f"a repository with {name}: {self.link} has none (GGUF files, a data set?)"
        if not self.may_fetch:
            allowed = f"a cached {name}: the cache {self.settings.cache} holds the repository without it; "
            allowed += "ask once with a connection and without --offline"
        raise HubError(what="model", given=str(self.id), allowed=allowed)


def open_repository(repository: RepositoryId, *, offline: bool = False) -> Repository:
    """Find the revision of a repository: by its commit in the cache, else at the Hub, else in the cache.

    Args:
        repository: which one.
        offline: leave the network alone.

    Raises:
        HubError: it is missing, private, disabled or renamed to nothing, has no such revision, or neither Hub nor
            cache can be read; one line says which.
    """
    settings = hub_settings(offline=offline)
    if settings.offline or (_COMMIT.match(repository.revision) and _snapshot(repository, settings)):
        return _cached(repository, settings, "", may_fetch=not settings.offline)
    place = "" if repository.revision == "main" else f"/revision/{quote(repository.revision, safe='')}"
    page = f"{settings.endpoint}/api/models/{repository.name}{place}?expand=sha&expand=safetensors"

    def ask() -> dict[str, Any]:
        found: Any = json.loads(b"".join(parts_of(page, settings, most_bytes=_MOST_PAGE_BYTES)))
        if not isinstance(found, dict):
            raise ValueError("no object")
        return cast("dict[str, Any]", found)

    try:
        found = asked(ask, repository, settings, what="its page")
    except HubError as error:
        if not isinstance(error.__cause__, OSError) or not _unreachable(error.__cause__):
            raise
        try:
            note = f"the Hub could not be asked ({_reason(error.__cause__)})"
            return _cached(repository, settings, note, may_fetch=False)
        except HubError:
            raise error from error.__cause__
    name, commit = str(found.get("id") or repository.name), str(found.get("sha") or "")
    if RepositoryId.parse(name) is None or (commit and not _COMMIT.match(commit)):
        allowed = f"a name and a commit: {settings.endpoint} said something else"
        raise HubError(what="model", given=f"{name[:100]!r} at {commit[:60]!r}", allowed=allowed)
    _note_reference(name, repository.revision, commit, settings)
    counted = _counted(found.get("safetensors"))
    return Repository(
        id=repository, name=name, commit=commit, origin="hub", settings=settings, elements_by_dtype=counted
    )


def _counted(stated: object) -> dict[str, int]:
    """Elements by data type, where a page states them as numbers that can be."""
    table: Any = cast("dict[str, Any]", stated).get("parameters") if isinstance(stated, dict) else None
    given = cast("dict[str, Any]", table) if isinstance(table, dict) else {}
    return {key: size for key, size in given.items() if type(size) is int and 0 <= size < 10**18}


def parts_of(
    url: str, settings: HubSettings, *, most_bytes: int, headers: Mapping[str, str] | None = None
) -> Generator[bytes]:
    """The body of an answer, part by part, within bounds of bytes and time.

    Args:
        url: what is asked.
        settings: how the Hub is reached.
        most_bytes: more is refused [bytes].
        headers: beside those of the client.

    Raises:
        OSError: it is longer, or takes longer than `LONGEST_S`.
    """
    build_headers, raise_for_status, stream = _client()
    until, size = time.monotonic() + LONGEST_S, 0
    sent = {**build_headers(library_name="rackline"), **(headers or {})}
    once = {"max_retries": 0, "retry_on_status_codes": (), "follow_redirects": True}
    with stream("GET", url, headers=sent, timeout=settings.timeout_s, **once) as response:
        raise_for_status(response)
        for part in response.iter_bytes():
            size += len(part)
            _check(size, until, most_bytes)
            yield part


def _client() -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Headers of huggingface_hub's requests, its errors, and its streams."""
    from huggingface_hub.utils import (
        build_hf_headers,  # pyright: ignore[reportUnknownVariableType]
        hf_raise_for_status,
        http_stream_backoff,  # pyright: ignore[reportUnknownVariableType]
    )

    return build_hf_headers, hf_raise_for_status, http_stream_backoff  # pyright: ignore[reportUnknownVariableType]


def _check(size: int, until: float, most_bytes: int) -> None:
    """Refuse an answer that is too long or too slow.

    Raises:
        OSError: it is.
    """
    if size > most_bytes:
        raise OSError(f"an answer of more than {most_bytes / 2**20:.0f} MiB")
    if time.monotonic() > until:
        raise OSError(f"an answer that takes longer than {LONGEST_S:.0f} s")


def _bounded_bar() -> Any:
    """A progress bar of huggingface_hub that is told of each part of a file, and refuses what is too long."""
    from huggingface_hub.utils import tqdm

    class Bounded(tqdm):
        def update(self, n: float | None = 1) -> bool | None:
            self.seen = getattr(self, "seen", 0) + int(n or 0)
            _check(self.seen, math.inf, MOST_FILE_BYTES)
            return super().update(n)

    return Bounded


def _within(seconds: float, call: Callable[[], T]) -> T:
    """What a call returns; it goes on in a thread of its own, which ends with the process, where it takes too long.

    Raises:
        OSError: it takes longer.
    """
    done: list[tuple[T | None, BaseException | None]] = []

    def run() -> None:
        try:
            done.append((call(), None))
        except BaseException as error:
            done.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not done:
        raise OSError(f"an answer that takes longer than {seconds:.0f} s")
    found, error = done[0]
    if error is not None:
        raise error
    return cast("T", found)


def _note_reference(name: str, revision: str, commit: str, settings: HubSettings) -> None:
    """Note in the cache which commit a branch or tag is, as huggingface_hub does where files are asked for by it.

    Files are asked for by commit here, so that all of one answer are of one revision.
    """
    if _COMMIT.match(revision) or not _COMMIT.match(commit):
        return
    try:
        file = settings.folder_of(name) / "refs" / revision
        note = read_text(file, what="cache", allowed="a commit", max_bytes=_MOST_NOTE_BYTES) if file.is_file() else ""
        if note != commit:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, commit, what="cache")
    except (OSError, InputError):  # a cache that cannot be written is none
        return


def _snapshot(repository: RepositoryId, settings: HubSettings) -> Path | None:
    """Folder of the cached files of a revision."""
    place, commit = settings.folder_of(repository.name), repository.revision
    if not _COMMIT.match(commit):
        try:
            file = place / "refs" / commit
            commit = read_text(file, what="cache", allowed="a commit", max_bytes=_MOST_NOTE_BYTES).strip()
        except InputError:
            return None
    folder = place / "snapshots" / commit
    return folder if folder.is_dir() else None


def _cached(repository: RepositoryId, settings: HubSettings, note: str, *, may_fetch: bool) -> Repository:
    folder = _snapshot(repository, settings)
    if folder is None:
        kept = settings.folder_of(repository.name).is_dir()
        known = f"; the cache holds other revisions of {repository.name}" if kept else ""
        allowed = f"a repository in the cache {settings.cache}, as the network is off (--offline or HF_HUB_OFFLINE)"
        raise HubError(what="model", given=str(repository), allowed=f"{allowed}{known}; ask once with a connection")
    return Repository(
        id=repository, name=repository.name, commit=folder.name, origin="cache", settings=settings, note=note,
        may_fetch=may_fetch,
    )  # fmt: skip


def asked(
    ask: Callable[[], T],
    repository: RepositoryId,
    settings: HubSettings,
    *,
    what: str,
    busy: Sequence[int] = _RETRIED,
) -> T:
    """Call the Hub, up to three times where it is busy or an answer is cut off; its errors in our words."""
    from huggingface_hub.errors import HfHubHTTPError

    for attempt in range(1, _TRIES + 1):
        try:
            with _quietly():
                return ask()
        except HfHubHTTPError as error:
            waits = error.response.headers.get("Retry-After", "")
            seconds = float(waits) if waits.isdigit() else float(attempt)
            if attempt == _TRIES or error.response.status_code not in busy or seconds > _LONGEST_WAIT_S:
                raise _refused(error, repository, settings, what) from error
            time.sleep(seconds)
        except Exception as error:
            known = isinstance(error, (OSError, ValueError, RuntimeError, EOFError))
            if not known and type(error).__module__.split(".")[0] not in _CLIENTS:
                raise
            if attempt == _TRIES or not _is_cut(error):
                cause = error if known else OSError(_reason(error))
                raise _failed(error, repository, settings, what, cut=_is_cut(error)) from cause
    raise AssertionError("unreachable")  # pragma: no cover


def _is_cut(error: BaseException) -> bool:
    """Whether a body ended before its length."""
    signs = ("RemoteProtocolError", "Consistency check", "ReadError", "IncompleteRead")
    return any(sign in f"{type(error).__name__} {error}" for sign in signs)


def _unreachable(error: BaseException) -> bool:
    """Whether the Hub itself could not answer, so that the cache may."""
    return (status := _status(error)) is None or status in _RETRIED


def _status(error: BaseException) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _reason(error: BaseException) -> str:
    if (status := _status(error)) is not None:
        return f"it answered {status}"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if type(error) is not OSError and text else text or type(error).__name__


def _failed(error: BaseException, repository: RepositoryId, settings: HubSettings, what: str, *, cut: bool) -> HubError:
    allowed = f"a catalogue name, or a connection to {settings.endpoint} ({_reason(error)}), or the model in the "
    allowed += f"cache {settings.cache}; a local config.json works without either"
    if cut:
        allowed = f"a whole {what}: the answer of {settings.endpoint} was cut off {_TRIES} times; ask again later"
    elif isinstance(error, ValueError):
        allowed = f"a Hub at HF_ENDPOINT: {settings.endpoint} sent no JSON for {what}"
    return HubError(what="model", given=str(repository), allowed=allowed)


def _refused(error: Any, repository: RepositoryId, settings: HubSettings, what: str) -> HubError:
    """An answer of the Hub that is no success, as one line that says what to do."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import DisabledRepoError, GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    status, link = error.response.status_code, f"{settings.endpoint}/{repository.name}"
    token = "a token (HF_TOKEN) of an account that" if not get_token() else "an account (that of HF_TOKEN) that"
    if isinstance(error, GatedRepoError):
        allowed = f"{token} has been granted access: the repository is gated; ask for access at {link}"
    elif isinstance(error, RevisionNotFoundError):
        allowed = f"a branch, tag or commit of {link} behind the @: there is no revision {repository.revision!r}"
    elif isinstance(error, DisabledRepoError):
        allowed = f"another repository: {link} has been disabled"
    elif isinstance(error, RepositoryNotFoundError) or status in (401, 404):
        allowed = f"a repository of {settings.endpoint}: there is none of this name, or it is private and needs "
        allowed += f"{token} may read it"
    elif status == 403:
        allowed = f"{token} may read {link} (403)"
    elif status == 429:
        allowed = f"fewer requests: {settings.endpoint} answered 429 {_TRIES} times to {what}; wait, or set HF_TOKEN"
    else:
        allowed = f"an answer of {settings.endpoint}: it said {status} to {what}; ask again later, or use --offline"
    return HubError(what="model", given=str(repository), allowed=allowed)


@contextlib.contextmanager
def _quietly() -> Generator[None]:
    """No log lines and no progress bars of the library: what matters is in the answer or the error."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    _client()  # its modules set the level of the log when they are imported
    logger, hidden = logging.getLogger(LIBRARY), are_progress_bars_disabled()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    if not hidden:
        disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if not hidden:
            enable_progress_bars()

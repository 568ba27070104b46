"""Repositories of the Hugging Face Hub: their identity, settings of its client, files from the Hub or its cache."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, cast

from rackline.errors import HubError, InputError
from rackline.files import write_text

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
    home = Path(given.get("XDG_CACHE_HOME") or Path.home() / ".cache")
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
        """As it is written."""
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

        def fetch() -> Path | None:
            try:
                return Path(
                    hf_hub_download(
                        self.name,
                        name,
                        revision=self.commit or self.id.revision,
                        cache_dir=self.settings.cache,
                        endpoint=self.settings.endpoint,
                        etag_timeout=self.settings.timeout_s,
                        library_name="rackline",
                        local_files_only=local,
                    )
                )
            except LocalEntryNotFoundError as error:
                if local:
                    return None
                raise (error.__cause__ or error) from error
            except EntryNotFoundError:
                return None

        return asked(fetch, self.id, self.settings, what=name, busy=())  # huggingface_hub waits itself

    def required(self, name: str) -> Path:
        """The same for a file that there must be.

        Raises:
            HubError: as `file`; the repository, or what the cache holds of it, has no such file.
        """
        found = self.file(name)
        if found is None:
            if not self.may_fetch:
                allowed = f"a cached {name}: the cache {self.settings.cache} holds the repository without it; "
                allowed += "ask once with a connection and without --offline"
            else:
                allowed = f"a repository with {name}: {self.link} has none (GGUF files, a data set?)"
            raise HubError(what="model", given=str(self.id), allowed=allowed)
        return found


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
    from huggingface_hub import HfApi

    api = HfApi(endpoint=settings.endpoint, library_name="rackline")

    def ask() -> Any:
        return api.model_info(
            repository.name,
            revision=None if repository.revision == "main" else repository.revision,
            expand=["sha", "safetensors"],
            timeout=settings.timeout_s,
        )

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
    counted = found.safetensors
    _note_reference(str(found.id or repository.name), repository.revision, str(found.sha or ""), settings)
    return Repository(
        id=repository,
        name=str(found.id or repository.name),
        commit=str(found.sha or ""),
        origin="hub",
        settings=settings,
        elements_by_dtype=dict(cast("dict[str, int]", counted.parameters)) if counted else {},
    )


def _note_reference(name: str, revision: str, commit: str, settings: HubSettings) -> None:
    """Note in the cache which commit a branch or tag is, as huggingface_hub does where files are asked for by it.

    Files are asked for by commit here, so that all of one answer are of one revision.
    """
    if _COMMIT.match(revision) or not _COMMIT.match(commit):
        return
    file = settings.cache / f"models--{name.replace('/', '--')}" / "refs" / revision
    try:
        if not file.is_file() or file.read_text(encoding="utf-8") != commit:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, commit, what="cache")
    except (OSError, UnicodeDecodeError, InputError):  # a cache that cannot be written is none
        return


def _snapshot(repository: RepositoryId, settings: HubSettings) -> Path | None:
    """Folder of the cached files of a revision."""
    place = settings.cache / f"models--{repository.name.replace('/', '--')}"
    commit = repository.revision
    if not _COMMIT.match(commit):
        try:
            commit = (place / "refs" / repository.revision).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return None
    folder = place / "snapshots" / commit
    return folder if folder.is_dir() else None


def _cached(repository: RepositoryId, settings: HubSettings, note: str, *, may_fetch: bool) -> Repository:
    folder = _snapshot(repository, settings)
    if folder is None:
        kept = settings.cache / f"models--{repository.name.replace('/', '--')}"
        known = f"; the cache holds other revisions of {repository.name}" if kept.is_dir() else ""
        raise HubError(
            what="model",
            given=str(repository),
            allowed=f"a repository in the cache {settings.cache}, as the network is off (--offline or HF_HUB_OFFLINE)"
            f"{known}; ask once with a connection",
        )
    return Repository(
        id=repository,
        name=repository.name,
        commit=folder.name,
        origin="cache",
        settings=settings,
        note=note,
        may_fetch=may_fetch,
    )


def asked(
    ask: Callable[[], T],
    repository: RepositoryId,
    settings: HubSettings,
    *,
    what: str,
    busy: tuple[int, ...] = _RETRIED,
) -> T:
    """Call the Hub, up to three times where it is busy or an answer is cut off; its errors in our words."""
    from huggingface_hub.errors import HfHubHTTPError

    for attempt in range(1, _TRIES + 1):
        try:
            with _quietly():
                return ask()
        except HfHubHTTPError as error:
            if attempt == _TRIES or error.response.status_code not in busy:
                raise _refused(error, repository, settings, what) from error
            waits = error.response.headers.get("Retry-After", "")
            seconds = float(waits) if waits.isdigit() else float(attempt)
            if seconds > _LONGEST_WAIT_S:
                raise _refused(error, repository, settings, what) from error
            time.sleep(seconds)
        except Exception as error:
            known = isinstance(error, (OSError, ValueError, RuntimeError, EOFError))
            if not known and not _is_of_client(error):
                raise
            if attempt == _TRIES or not _is_cut(error):
                cause = error if known else OSError(_reason(error))
                raise _failed(error, repository, settings, what, cut=_is_cut(error)) from cause
    raise AssertionError("unreachable")  # pragma: no cover


def _is_of_client(error: BaseException) -> bool:
    """Whether an error comes from the HTTP client that huggingface_hub brings (httpx, httpx2 in newer releases)."""
    return type(error).__module__.split(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2", LIBRARY, "requests")


def _is_cut(error: BaseException) -> bool:
    """Whether a body ended before its length."""
    text = f"{type(error).__name__} {error}"
    return (
        "RemoteProtocolError" in text or "Consistency check" in text or "ReadError" in text or "IncompleteRead" in text
    )


def _unreachable(error: BaseException) -> bool:
    """Whether the Hub itself could not answer, so that the cache may."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status is None or status in _RETRIED


def _reason(error: BaseException) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"it answered {status}"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if type(error) is not OSError and text else text or type(error).__name__


def _failed(error: BaseException, repository: RepositoryId, settings: HubSettings, what: str, *, cut: bool) -> HubError:
    given = str(repository)
    if cut:
        allowed = f"a whole {what}: the answer of {settings.endpoint} was cut off {_TRIES} times; ask again later"
        return HubError(what="model", given=given, allowed=allowed)
    if isinstance(error, ValueError):
        return HubError(
            what="model", given=given, allowed=f"a Hub at HF_ENDPOINT: {settings.endpoint} sent no JSON for {what}"
        )
    return HubError(
        what="model",
        given=given,
        allowed=f"a catalogue name, or a connection to {settings.endpoint} ({_reason(error)}), or the model in the "
        f"cache {settings.cache}; a local config.json works without either",
    )


def _refused(error: Any, repository: RepositoryId, settings: HubSettings, what: str) -> HubError:
    """An answer of the Hub that is no success, as one line that says what to do."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import DisabledRepoError, GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    given, link = str(repository), f"{settings.endpoint}/{repository.name}"
    status = error.response.status_code
    has_token = bool(get_token())
    token = "a token (HF_TOKEN) of an account that" if not has_token else "an account (that of HF_TOKEN) that"
    if isinstance(error, GatedRepoError):
        allowed = f"{token} has been granted access: the repository is gated; ask for access at {link}"
    elif isinstance(error, RevisionNotFoundError):
        allowed = f"a branch, tag or commit of {link} behind the @: there is no revision {repository.revision!r}"
    elif isinstance(error, DisabledRepoError):
        allowed = f"another repository: {link} has been disabled"
    elif isinstance(error, RepositoryNotFoundError) or status in (401, 404):
        allowed = (
            f"a repository of {settings.endpoint}: there is none of this name, or it is private and needs {token} "
        )
        allowed += "may read it"
    elif status == 403:
        allowed = f"{token} may read {link} (403)"
    elif status == 429:
        allowed = f"fewer requests: {settings.endpoint} answered 429 {_TRIES} times to {what}; wait, or set HF_TOKEN"
    else:
        allowed = f"an answer of {settings.endpoint}: it said {status} to {what}; ask again later, or use --offline"
    return HubError(what="model", given=given, allowed=allowed)


@contextlib.contextmanager
def _quietly() -> Generator[None]:
    """No log lines and no progress bars of the library: what matters is in the answer or the error."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

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

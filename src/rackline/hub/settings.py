"""Where the Hub is, where its files are kept, and whether it may be asked: as huggingface_hub reads the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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

"""What the Hub sends is read within bytes and seconds, and is believed only where it can be."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rackline as rl
from hub_server import Hub, Repo, serving
from rackline.errors import HubError
from rackline.hub import repository

CONFIG = json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}).encode()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub(repos={"acme/tiny": Repo({"config.json": CONFIG})})
    with serving(server) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yield server


@pytest.mark.parametrize("bound", ["MOST_FILE_BYTES", "_MOST_PAGE_BYTES"])
def test_what_is_too_long_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(repository, bound, 16)
    with pytest.raises(HubError, match="an answer of more than 0 MiB"):
        rl.model("acme/tiny")


def test_what_takes_too_long_is_given_up() -> None:
    never = threading.Event()
    with pytest.raises(OSError, match="an answer that takes longer than 0 s"):
        repository._within(0.01, never.wait)
    never.set()
    assert repository._within(60.0, lambda: 3) == 3
    with pytest.raises(KeyError):
        repository._within(60.0, lambda: {}["a"])


def test_a_page_that_trickles_is_given_up(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "LONGEST_S", -1.0)
    with pytest.raises(HubError, match="an answer that takes longer than"):
        rl.model("acme/tiny")


@pytest.mark.parametrize("said", [{"sha": "../../etc"}, {"id": "../../etc"}, {"sha": 7}, []])
def test_a_page_that_says_what_cannot_be_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    monkeypatch.setattr(repository, "parts_of", lambda *_, **__: iter([json.dumps(said).encode()]))
    with pytest.raises(HubError):
        rl.model("acme/tiny")


def test_counts_beyond_belief_are_left_out() -> None:
    stated = {"parameters": {"BF16": 8, "F32": -1, "F8": 10**30, "I8": "many", "U8": True}}
    assert repository._counted(stated) == {"BF16": 8}
    assert repository._counted([1]) == repository._counted({"parameters": [1]}) == {}

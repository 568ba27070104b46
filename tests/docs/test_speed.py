"""The table of docs/speed.md is that of the stored measurements."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def _bench() -> Any:
    spec = importlib.util.spec_from_file_location("speed", ROOT / "bench" / "speed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["speed"] = module  # its dataclasses look there for their annotations
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_what_was_measured() -> None:
    speed = _bench()
    stored = json.loads(speed.STORED.read_text(encoding="utf-8"))
    page = speed.PAGE.read_text(encoding="utf-8")
    assert speed.filled(page, stored) == page
    assert page.count(speed.MARK) == 1
    assert set(stored["now"]) == set(speed.COMMANDS)


def test_all_bars_held_when_it_was_measured() -> None:
    speed = _bench()
    stored = json.loads(speed.STORED.read_text(encoding="utf-8"))
    late = {
        name: found["cpu_s"]
        for name, found in stored["now"].items()
        if (bar := speed.COMMANDS[name].bar_s) is not None and found["cpu_s"] > bar
    }
    assert late == {}

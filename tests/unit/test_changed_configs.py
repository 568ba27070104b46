"""What each key of a configuration decides: left out, doubled or switched in turn, in every family of the library and
in every tower for images and sound.

`changed_configs.json` has, for each key, the parameters that the model has then with a digest of all that is read of
it, or why it is refused. After a change that is meant:

    PYTHONPATH=tests:tests/unit uv run python tests/unit/test_changed_configs.py write
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import hf_configs
import pytest
from test_read_models import read

from rackline.arch.hf_towers import has_tower, tower_of
from rackline.errors import RacklineError
from stored import assert_told_as_stored, digest, write_anew

ROOT = Path(__file__).resolve().parents[1]
TOWERS: dict[str, dict[str, Any]] = json.loads((ROOT / "fixtures" / "transformers_towers.json").read_text())
SIZES = ((1000, 700), (224, 224), (4000, 300), (60, 900))  # of images [pixels]
STORED = Path(__file__).with_name("changed_configs.json")
LIBRARY: dict[str, dict[str, Any]] = json.loads((ROOT / "fixtures" / "transformers_families.json").read_text())
CONFIGS: dict[str, dict[str, Any]] = {
    **{name: one["config"] for name, one in LIBRARY.items()},
    **{name: value for name, value in vars(hf_configs).items() if name.isupper() and isinstance(value, dict)},
    **{f"tower of {name}": one["config"] for name, one in TOWERS.items()},
}


def read_tower(config: dict[str, Any]) -> dict[str, Any]:
    """What the tower of a configuration gives, or why it is refused."""
    try:
        kind = has_tower(config)[0] if has_tower(config) else "vision"
        found = tower_of(config, kind, "config.json")
        views = [found.image(*size) for size in SIZES] if kind == "vision" else [found.sound(70.0)]
        return {"total": found.model.total_params, "tower": repr(found), "views": [repr(one) for one in views]}
    except RacklineError as error:
        return {"refused": str(error)}


def changed(value: Any) -> Any:
    """Another value of the same kind."""
    match value:
        case bool():
            return not value
        case int() | float():
            return 2 * value
        case str():
            return f"{value}_x"
        case list():
            return cast("list[Any]", value)[: len(value) // 2]
        case _:
            return 7


def changes(config: dict[str, Any], where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each key left out, and with another value; within inner objects too."""
    for key, value in config.items():
        at = f"{where}{key}"
        yield f"without {at}", {name: one for name, one in config.items() if name != key}
        yield f"another {at}", config | {key: changed(value)}
        if isinstance(value, dict):
            for fault, inner in changes(cast("dict[str, Any]", value), f"{at}."):
                yield fault, config | {key: inner}


def in_short(found: dict[str, Any]) -> str:
    """Why it is refused, or the parameters with a digest of everything."""
    if "refused" in found:
        return found["refused"].partition(", allowed")[0][:90]
    return f"{found['total']:.7g} {digest(found, 6)}"


def told(name: str) -> dict[str, Any]:
    """What each change gives; those without an effect by their names alone."""
    config, reads = CONFIGS[name], read_tower if name.startswith("tower") else read
    usual = in_short(reads(config))
    found = {change: in_short(reads(given)) for change, given in changes(config)}
    moved = {change: one for change, one in found.items() if one != usual}
    return {"as it is": usual, **moved, "nothing": " ".join(change for change in found if change not in moved)}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_key_decides_what_it_did(name: str) -> None:
    assert_told_as_stored(json.loads(STORED.read_text(encoding="utf-8"))[name], told(name))


if __name__ == "__main__":
    sys.exit(write_anew(STORED, CONFIGS, told, __doc__))

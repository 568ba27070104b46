"""Numbers of a configuration: which are taken, at their bounds."""

from __future__ import annotations

from typing import Any

import pytest

from rackline.arch.hf_config import LARGEST_COUNT, HfConfig
from rackline.errors import ConfigError


@pytest.mark.parametrize("value", [1e-9, 0.5, 1, 2.6, LARGEST_COUNT - 1, LARGEST_COUNT, float(LARGEST_COUNT)])
def test_a_number_may_be_any_positive_one(value: float) -> None:
    found = HfConfig(values={"ffn_mult": value}, where="config.json").number("ffn_mult")
    assert found == value
    assert isinstance(found, float)


@pytest.mark.parametrize(
    "value",
    [
        0,
        0.0,
        -1e-9,
        -1,
        LARGEST_COUNT + 1,
        LARGEST_COUNT * 1.001,
        float("inf"),
        float("nan"),
        True,
        False,
        "2",
        None,
        [2],
    ],
)
def test_other_values_are_refused_by_key(value: Any) -> None:
    with pytest.raises(ConfigError, match="ffn_mult"):
        HfConfig(values={"ffn_mult": value}, where="config.json").number("ffn_mult")


def test_an_absent_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="no such key"):
        HfConfig(values={}, where="config.json").number("ffn_mult")


@pytest.mark.parametrize(
    ("values", "key", "expected"),
    [
        ({"layers": [1, 2]}, "layers", "got 'a JSON array'"),
        ({"layers": {"a": 1}}, "layers", "got 'a JSON object'"),
        ({"layers": None}, "layers", "got 'null'"),
        ({"layer": 3}, "layers", "got 'no such key', allowed: a count; nearest: layer"),
        ({"layers": "x"}, "layers", "got 'x'"),
    ],
)
def test_a_refused_key_shows_what_stood_there(values: dict[str, object], key: str, expected: str) -> None:
    refused = str(HfConfig(values=values, where="config.json", prefix="text_config.").fail(key, "a count"))
    assert refused.startswith("config.json: text_config.layers: ")
    assert expected in refused

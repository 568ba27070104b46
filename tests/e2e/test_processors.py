"""Answers are the same on every processor: bench/processors.py asks under kernels and threads of several."""

from __future__ import annotations

import pytest

from scripts import load_script

processors = load_script("processors")


def check(names: list[str], settings: list[str]) -> None:
    lines: list[str] = []
    moved = processors.compare(names, settings, lines.append)
    assert moved == 0, "\n".join(lines)


@pytest.mark.slow
def test_a_few_answers_are_equal_without_all_that_a_processor_may_lack() -> None:
    _, quick = processors.questions()
    check(quick, ["own", "oldest"])


@pytest.mark.nightly
@pytest.mark.parametrize("setting", [name for name in processors.settings() if name != "own"])
def test_all_answers_are_equal_under_each_setting(setting: str) -> None:
    missing = processors.settings()[setting].missing
    if missing:
        pytest.skip(f"{setting}: {missing}")
    commands, _ = processors.questions()
    check(list(commands), ["own", setting])


def test_a_difference_is_noticed() -> None:
    first = {"text": ["a"], "data": [{"rate": 1.0, "name": None}]}
    near = {"text": ["a"], "data": [{"rate": 1.0 + 1e-12, "name": None}]}
    far = {"text": ["b"], "data": [{"rate": 1.0 + 1e-6, "more": 1}]}
    assert not list(processors.differences(first, near, processors.TOLERANCE))
    assert list(processors.differences(first, far, processors.TOLERANCE)) == [
        "text[0]: a → b",
        "data[0].rate: 1.0 → 1.000001",
        "data[0].name: None → nothing",
        "data[0].more: nothing → 1",
    ]

"""Options that contradict or miss each other are refused before anything is read or computed."""

from __future__ import annotations

from typing import Any

import pytest

from rackline.api.answer import Watch, answer_of, find_verb
from rackline.api.question import Question
from rackline.api.verbs import entries
from rackline.errors import InputError

SERVED = {"model": "no-such-model", "on": "no-such-cluster"}
OBSERVED = {"url": "http://localhost:1", "input": 5, "output": 5}
REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("simulate", SERVED | {"agents": "coding", "trace": "none.csv"}, "trace"),
    ("simulate", SERVED | {"rate": "5", "concurrency": "4"}, "concurrency"),
    ("simulate", SERVED | {"rate": "5", "window": "3s"}, "window"),
    ("simulate", SERVED | {"rate": "5", "load": "day", "spare_hosts": 3}, "spare_hosts"),
    ("simulate", SERVED | {"rate": "5", "load": "day", "requests": 3}, "requests"),
    ("simulate", SERVED | {"rate": "5", "capacity": "ttft=1s", "compare": ["chips=2"]}, "compare"),
    ("simulate", SERVED | {"rate": "5", "users": 3}, "traffic"),
    ("simulate", SERVED | {"trace": "none.csv", "rate": "5"}, "rate"),
    ("simulate", SERVED | {"classes": "none.toml", "input": 5, "rate": "5"}, "input"),
    ("simulate", SERVED | {"rate": "5", "system_prompt": 5}, "system_prompt"),
    ("simulate", SERVED | {"rate": "5", "mix": "none.csv", "output": 5}, "output"),
    ("simulate", SERVED | {"load": "none.csv", "diurnal_amplitude": 0.5}, "diurnal_amplitude"),
    ("observe", OBSERVED, "traffic"),
    ("observe", OBSERVED | {"rate": "5", "chips": 2}, "chips"),
    ("observe", OBSERVED | {"rate": "5", "layout": "tp=2"}, "layout"),
    ("rl", SERVED | {"staleness": 2}, "--staleness"),
    ("rl", SERVED | {"tool_time": "2s"}, "tool_time"),
    ("rl", SERVED | {"trace": "none.csv", "spread": 1}, "spread"),
    ("plan", SERVED | {"load_time": "1h"}, "load_time"),
    ("plan", SERVED | {"load": "none.csv", "users": 3}, "users"),
    ("plan", SERVED | {"adapters": 3}, "adapters"),
    ("plan", SERVED | {"adapter": "none", "resident_adapters": 3}, "resident_adapters"),
    ("fit", SERVED | {"adapter_link": "3GB/s"}, "adapter_link"),
    ("explain", SERVED | {"batch": 0, "context": 5}, "batch"),
    ("tiers", SERVED | {"rate": "3"}, "rate"),
    ("tiers", SERVED | {"trace": "none.csv", "turns": 3}, "turns"),
    ("afford", {"models": ["none"], "on": ["none"]}, "budget"),
    ("afford", {"models": ["none"], "on": ["none"], "users": 3, "requests": "5/s"}, "requests"),
    ("validate", {"model": "none"}, "model"),
    ("validate", {"import_format": "vllm"}, "files"),
    ("calibrate", {}, "tables"),
    ("calibrate", {"observed": ["none.jsonl"], "tables": ["none.csv"]}, "tables"),
    ("lecture", {"guess": True, "measured": "none.json"}, "measured"),
    ("models", {"on": "none"}, "on"),
)


def _never(question: Question, watch: Watch) -> None:
    pytest.fail("work began")


@pytest.mark.parametrize(("verb", "data", "what"), REFUSED, ids=[f"{verb}-{what}" for verb, _, what in REFUSED])
def test_options_are_refused_before_any_work(verb: str, data: dict[str, Any], what: str) -> None:
    question = find_verb(verb).question.from_data(data)
    with pytest.raises(InputError) as refused:
        answer_of(question, _never)
    assert refused.value.what == what


@pytest.mark.parametrize("name", [name for name, entry in entries().items() if entry.request])
def test_each_check_passes_on_to_the_other_groups(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[Question] = []

    def note(question: Question) -> None:
        reached.append(question)

    monkeypatch.setattr(Question, "check_options", note)
    data = {key: value for key, value in entries()[name].request.items() if key != "uploads"}
    question = find_verb(name).question.from_data(data)
    question.check_options()
    assert reached == [question]

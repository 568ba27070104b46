"""Properties of the benchmarks behind sources that their rows do not state: `sources.toml`, one entry per benchmark."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal

from rackline.validation.cases import Case

_FILE = "sources.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A benchmark.

    Args:
        prefix: start of the `source` of its cases.
        name: name of the benchmark.
        tpot: which inter-token time it publishes.
        sampling: sampling method of its requests.
        precision_detail: data types of its servers, as in a case.
        output_spread: standard deviation of its output lengths over their mean [1].
        assumed_input_len: prompt length instead of one that a case only assumes; None keeps that of the case [tokens].
        attention_dp_of_mixtures: whether its tp means attention data parallelism for mixtures of experts.
        requests: number of requests by lengths, as "input/output" [requests].
        urls, accessed: sources of this information, and the date of access.
    """

    prefix: str = ""
    name: str = ""
    tpot: Literal["mean", "median"] = "mean"
    sampling: Literal["greedy", "top_p"] = "greedy"
    precision_detail: str = ""
    output_spread: float = 0.0
    assumed_input_len: float | None = None
    attention_dp_of_mixtures: bool = False
    requests: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    urls: tuple[str, ...] = ()
    accessed: str = ""


_PLAIN = Source()


def source_of(case: Case) -> Source:
    """The benchmark of a case; by default one that publishes means of greedy decoding."""
    label = case.source
    return next((source for source in known_sources() if label.startswith(source.prefix)), _PLAIN)


def requests_of(case: Case) -> float:
    """Number of requests at unlimited rate, from the case or its benchmark; 0 if neither states it."""
    if case.values.get("num_prompts"):
        return case.number("num_prompts")
    lengths = f"{case.number('input_len'):g}/{case.number('output_len'):g}"
    return float(source_of(case).requests.get(lengths, 0))


@cache
def known_sources() -> tuple[Source, ...]:
    """All entries."""
    text = (resources.files("rackline.validation") / _FILE).read_text(encoding="utf-8")
    found: list[Source] = []
    for entry in tomllib.loads(text)["source"]:
        values: dict[str, Any] = dict(entry)
        urls = tuple(str(url) for url in values.pop("urls"))
        found.append(Source(urls=urls, **values))
    return tuple(found)

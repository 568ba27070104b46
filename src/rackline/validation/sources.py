"""Properties of the benchmarks behind sources that their rows do not state: `sources.toml`, one entry per benchmark."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from math import inf
from typing import Any, Literal

from rackline.validation.cases import Case

_FILE = "sources.toml"
_SHAPES = {"Llama-3.3": "Llama-3.1", "DeepSeek-R1": "DeepSeek-V3", "DeepSeek-V3.1": "DeepSeek-V3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """How a benchmark starts the servers of a stack and a model, where that differs from the stack's defaults.

    Args:
        stack: of the cases, as they write it.
        model: of the cases, as they write it; all where it is empty.
        chips: of the cases; all where it is empty.
        prompt_graph_tokens: as of `rackline.serving.stack.Stack`; the stack's own where it is None [tokens].
        precision_detail: data types that they set, as in a case.
        offline: whether they call the engine's class for offline use instead of its server.
        max_batched_tokens: that commands at unlimited rate set; the stack's own where it is None [tokens].
        batch_wait_steps: as of `rackline.serving.stack.Stack`.
        lengths: of its requests, as "input/output"; all where it is empty.
        tp_below: of deployments with a tp below it; of all where it is 0 [chips].
    """

    stack: str
    model: str = ""
    chips: tuple[str, ...] = ()
    prompt_graph_tokens: int | None = None
    precision_detail: str = ""
    offline: bool = False
    max_batched_tokens: int | None = None
    batch_wait_steps: int = 0
    lengths: tuple[str, ...] = ()
    tp_below: int = 0

    def holds(self, case: Case) -> bool:
        """Whether it is about a case."""
        return (
            self.stack == case.stack
            and self.model in ("", case.model)
            and (not self.chips or case.chip in self.chips)
            and (not self.lengths or _lengths_of(case) in self.lengths)
            and (not self.tp_below or int(case.layout.get("tp", 1)) < self.tp_below)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A benchmark.

    Args:
        prefix: start of the `source` of its cases.
        name: name of the benchmark.
        laboratory: who ran its servers; the name if it is empty.
        tpot: which inter-token time it publishes.
        sampling: sampling method of its requests.
        precision_detail: data types of its servers, as in a case.
        output_spread: standard deviation of its output lengths over their mean [1].
        assumed_input_len: prompt length instead of one that a case only assumes; None keeps that of the case [tokens].
        attention_dp_of_mixtures: whether its tp means attention data parallelism for mixtures of experts.
        requests: number of requests by lengths, as "input/output" [requests].
        requests_per_user: number of requests over the concurrency, where all users begin at once and all requests
            count; 0 where it is not known [requests].
        launched: settings of its launch commands.
        newest_versions: newest version of a stack that its cases without a number can have run, by its date.
        urls, accessed: sources of this information, and the date of access.
    """

    prefix: str = ""
    name: str = ""
    laboratory: str = ""
    tpot: Literal["mean", "median"] = "mean"
    sampling: Literal["greedy", "top_p"] = "greedy"
    precision_detail: str = ""
    output_spread: float = 0.0
    assumed_input_len: float | None = None
    attention_dp_of_mixtures: bool = False
    requests: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    requests_per_user: int = 0
    launched: tuple[Launched, ...] = ()
    newest_versions: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    urls: tuple[str, ...] = ()
    accessed: str = ""


_PLAIN = Source()


def source_of(case: Case) -> Source:
    """The benchmark of a case; by default one that publishes means of greedy decoding."""
    label = case.source
    return next((source for source in known_sources() if label.startswith(source.prefix)), _PLAIN)


def laboratory_of(case: Case) -> str:
    """Who ran the servers of a case: as its benchmark says, else where it was published."""
    found = source_of(case)
    return found.laboratory or found.name or case.source.partition("@")[0].partition("#")[0] or "-"


def shape_of(model: str) -> str:
    """A model without what releases of one shape differ in, so that they are left out together.

    >>> shape_of("Qwen/Qwen3-235B-A22B-Thinking-2507-FP8"), shape_of("meta-llama/Llama-3.3-70B-Instruct")
    ('Qwen3-235B-A22B', 'Llama-3.1-70B')
    """
    name = model.rpartition("/")[2]
    for word in ("-Instruct", "-Thinking", "-2507", "-FP8", "-NVFP4"):
        name = name.replace(word, "")
    for release, shape in _SHAPES.items():
        name = name.replace(release, shape)
    return name or model


def launched_of(case: Case) -> tuple[Launched, ...]:
    """What the launch command of a case set, where its benchmark says so; later ones win."""
    return tuple(one for one in source_of(case).launched if one.holds(case))


def requests_of(case: Case) -> float:
    """Number of requests of a run, from the case or its benchmark; 0 if neither states it."""
    if case.values.get("num_prompts"):
        return case.number("num_prompts")
    found = source_of(case)
    if "concurrency" in case.values:
        return found.requests_per_user * case.number("concurrency")
    return float(found.requests.get(_lengths_of(case), 0))


def rounds_of(case: Case) -> float:
    """Requests that each user of a closed loop sends; infinite where their number is unknown, or where the source
    states medians, which a first burst hardly moves."""
    if case.text("statistic") == "median":
        return inf
    return requests_of(case) / case.number("concurrency") or inf


def _lengths_of(case: Case) -> str:
    return f"{case.number('input_len'):g}/{case.number('output_len'):g}"


@cache
def known_sources() -> tuple[Source, ...]:
    """All entries."""
    text = (resources.files("rackline.validation") / _FILE).read_text(encoding="utf-8")
    found: list[Source] = []
    for entry in tomllib.loads(text)["source"]:
        values: dict[str, Any] = dict(entry)
        urls = tuple(str(url) for url in values.pop("urls"))
        rows: list[dict[str, Any]] = values.pop("launched", [])
        for row in rows:
            row |= {key: tuple(row[key]) for key in ("chips", "lengths") if key in row}
        launched = tuple(Launched(**row) for row in rows)
        found.append(Source(urls=urls, launched=launched, **values))
    return tuple(found)

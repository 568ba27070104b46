"""What a model is used for: lengths and limits that a question leaves open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from rackline.api.question import Question, options
from rackline.late import late
from rackline.units import format_seconds

with late:
    from rackline import catalog
    from rackline.report import wording


USUAL = "chat"


Q = TypeVar("Q", bound=Question)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a use added to a question.

    Args:
        name: of the use.
        asked: whether it was asked for; else it is the usual one.
        filled: options that it gave, with their values as text.
        sources: where they are from, by option.
    """

    json_keys: ClassVar = ("name", "asked", "filled", "sources")

    name: str
    asked: bool
    filled: dict[str, str]
    sources: dict[str, str]

    @property
    def text(self) -> str:
        """One line: "for chat (the default): input 1,155, ttft 2.00 s@p99"; empty where it added nothing."""
        if not self.filled:
            return f"for {self.name}: no latency is limited" if self.asked else ""
        how = "" if self.asked else " (the default)"
        values = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.filled.items())
        return f"for {self.name}{how}: {values}"


def use_lines(use: Use | None, *, full: bool = False) -> Iterable[Any]:
    """What a terminal shows of lengths and limits that nobody asked for; with their sources in full."""
    if use is None or not use.text:
        return
    others = "" if use.asked else "; --for agents, summarise or batch has others"
    yield wording.Prose(f"{use.text}{others}", style="dim")
    if full:
        for source in dict.fromkeys(use.sources.values()):
            yield wording.Prose(f"  {source}", style="dim")


def record_of(use: str | None) -> catalog.UseRecord:
    """A use of the catalogue or of a file; chat for None.

    Raises:
        UnknownNameError: neither.
    """
    return catalog.use_record(use or USUAL)


def with_use(question: Q) -> tuple[Q, Use]:
    """The question with the lengths and limits of its use where it has none; of chat where it names no use.

    A question gets what it has an option for: `simulate` its limits as `slo`, `price` no prompts.

    Raises:
        UnknownNameError: neither a use of the catalogue nor a file.
    """
    known, given = options(type(question)), vars(question)
    record = record_of(given["use"])
    place = "" if record.percentile is None else f"@p{record.percentile:g}"
    lengths: dict[str, float | None] = {}
    if given["mix"] is None and given["trace"] is None:
        lengths = {"input": record.input_len, "output": record.output_len}
    if lengths and given.get("input") is None and given.get("turns") is None:  # conversations find their own
        lengths["cache_hit"] = record.cache_hit or None
    limits: dict[str, float | None] = {"tpot": record.tpot_s, "ttft": record.ttft_s}
    values: dict[str, float | str] = {}
    shown: dict[str, str] = {}
    for name, value in lengths.items():
        if name in known and value is not None and not given[name]:
            values[name] = value
            shown[name] = f"{value:.0%}" if name == "cache_hit" else f"{value:,.0f}"
    if "slo" in known:
        if given["slo"] is None and any(limits.values()):
            values["slo"] = ",".join(f"{name}={value!r}s" for name, value in limits.items() if value) + place
            shown |= {name: f"{format_seconds(value)}{place}" for name, value in limits.items() if value}
        limits = {}
    for name, value in limits.items():
        if name in known and value is not None and given[name] is None:
            of_mean = known[name].kind != "limit"  # an option that takes no percentile
            values[name] = value if of_mean else f"{value!r}s{place}"
            shown[name] = f"{format_seconds(value)}{'' if of_mean else place}"
    use = Use(
        name=record.name,
        asked=given["use"] is not None,
        filled=shown,
        sources={name: _source(record, name) for name in shown},
    )
    return replace(question, **values), use


def _source(record: catalog.UseRecord, name: str) -> str:
    keys = {"input": "input_len", "output": "output_len", "tpot": "tpot_s", "ttft": "ttft_s"}
    source = record.source_of(keys.get(name, name))
    return "" if source is None else source.text

"""What a model is used for: lengths and limits that a question leaves open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from rackline.api.option import si
from rackline.units import Quantity, format_seconds

if TYPE_CHECKING:
    from rackline.catalog import UseRecord

USUAL = "chat"


class _Question(Protocol):
    @property
    def use(self) -> str | None: ...
    @property
    def input(self) -> Quantity | None: ...
    @property
    def output(self) -> Quantity | None: ...
    @property
    def tpot(self) -> Quantity | None: ...
    @property
    def ttft(self) -> Quantity | None: ...
    @property
    def cache_hit(self) -> Quantity | None: ...
    @property
    def mix(self) -> str | None: ...
    @property
    def trace(self) -> str | None: ...


Q = TypeVar("Q", bound=_Question)


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


def with_use(question: Q) -> tuple[Q, Use]:
    """The question with the lengths and limits of its use where it has none.

    Raises:
        UnknownNameError: neither a use of the catalogue nor a file.
    """
    from rackline.catalog import use_record

    record = use_record(question.use or USUAL)
    place = "" if record.percentile is None else f"@p{record.percentile:g}"
    lengths: dict[str, float | None] = {}
    if question.mix is None and question.trace is None:
        lengths = {"input": record.input_len, "output": record.output_len}
    if lengths and question.input is None:
        lengths["cache_hit"] = record.cache_hit or None
    limits: dict[str, float | None] = {"tpot": record.tpot_s, "ttft": record.ttft_s}
    values: dict[str, float | str] = {}
    shown: dict[str, str] = {}
    for name, value in lengths.items():
        if value is not None and not si(getattr(question, name)):
            values[name] = value
            shown[name] = f"{value:.0%}" if name == "cache_hit" else f"{value:,.0f}"
    for name, value in limits.items():
        if value is not None and getattr(question, name) is None:
            values[name] = f"{value!r}s{place}"
            shown[name] = f"{format_seconds(value)}{place}"
    use = Use(
        name=record.name,
        asked=question.use is not None,
        filled=shown,
        sources={name: _source(record, name) for name in shown},
    )
    return replace(question, **values), use  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType]


def _source(record: UseRecord, name: str) -> str:
    keys = {"input": "input_len", "output": "output_len", "tpot": "tpot_s", "ttft": "ttft_s"}
    source = record.source_of(keys.get(name, name))
    return "" if source is None else source.text

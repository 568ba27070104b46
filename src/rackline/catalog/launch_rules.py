"""Records of launch rules: which layouts, schedulers and data types a serving engine starts with."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rackline.catalog.base import Count, Record, SourcedRecord, Text

Version = Text

Admission = Literal["chunked", "prefill_first", "decode_first"]
"""How prompts enter a server."""


class LaunchRule(Record):
    """One rule; which of the parameters it reads is stated in `rackline.search.launch_rules`.

    Args:
        says: The rule in one line, as a rejected layout is told.
        since: From this version on, such as "0.8"; all earlier ones when it is missing.
        before: Versions below this one; all later ones when it is missing.
        admissions: Admissions that the engine's scheduler has.
        sizes: Ranks of an expert exchange within a host [count].
        groups: Weights that share a scale, by data type; no rank cuts through a group [count].
        vendors: Vendors of the chips that the engine runs on.
        lacking: Data types of weights that a generation of chips does not run, by generation.
    """

    says: Text
    since: Version | None = Field(default=None, pattern=r"^\d+(\.\d+)*$")
    before: Version | None = Field(default=None, pattern=r"^\d+(\.\d+)*$")
    admissions: tuple[Admission, ...] | None = None
    sizes: tuple[Count, ...] | None = None
    groups: dict[str, Count] | None = None
    vendors: tuple[Text, ...] | None = None
    lacking: dict[str, tuple[Text, ...]] | None = None


RuleName = Literal[
    "same_chips_on_each_host", "expert_group_whole", "experts_equal", "exchange_ranks", "attention_whole_or_split",
    "decode_pool_unpipelined", "context_whole", "prefill_context_whole", "admissions", "mixed_unpipelined",
    "overlap_whole_group", "no_overlap", "scale_groups", "vendors", "weights_of_chip",
]  # fmt: skip


class AdapterOptions(Record):
    """How low-rank adapters are named to an engine, with {name}, {path}, {rank}, {resident}, {number} and {modules} for
    the values.

    Args:
        words: Options of the command.
        waiting: More of them where some adapters wait in the memory of the host.
        file: Lines of the options file.
        ranks: Bottlenecks that the engine makes room for, of which the next wider one is written; any when missing.
        modules: What the engine calls a module, by the last part of its name in the checkpoint; alike when missing.
        later: How the other adapters are loaded, in one line.
    """

    words: tuple[Text, ...] = ()
    waiting: tuple[Text, ...] = ()
    file: tuple[Text, ...] = ()
    ranks: tuple[Count, ...] | None = None
    modules: dict[str, Text] | None = None
    later: Text


class LaunchRulesRecord(SourcedRecord):
    """What an engine refuses to start with, and options that are alike for all layouts.

    Args:
        version: Newest version that was read.
        rules: By name; each is covered by a source.
        adapters: How adapters are named; None for an engine whose options were not read.
    """

    version: Version = Field(pattern=r"^\d+(\.\d+)*$")
    rules: dict[RuleName, LaunchRule]
    adapters: AdapterOptions | None = None

    @model_validator(mode="after")
    def _every_rule_has_a_source(self) -> Self:
        for name in self.rules:
            if self.source_of(f"rules.{name}") is None:
                raise ValueError(f"no [[sources]] entry covers rules.{name}")
        if self.adapters is not None and self.source_of("adapters") is None:
            raise ValueError("no [[sources]] entry covers adapters")
        return self

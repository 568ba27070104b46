"""Records of what is published: price sheets, uses, scaling laws, training runs, launch rules and orchestrators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rackline.catalog.base import Count, Date, NonNegative, Positive, Record, SourcedRecord, Text

Usd = Annotated[float, Field()]

ServiceMode = Literal["standard", "batch", "flex", "priority", "fast"]


class CacheWriteRecord(Record):
    """What it costs to put a prompt into the cache.

    Args:
        name: How the lifetime is called ("5min").
        lifetime_s: How long it is kept without being used, None where the provider does not say [s].
        usd_per_mtok: Price of each token written, its processing included [USD per million tokens].
    """

    name: Text
    lifetime_s: Positive | None = None
    usd_per_mtok: Usd


class PriceTierRecord(Record):
    """Prices of one mode of service from one context length on.

    Args:
        name: Unique in the sheet ("standard", "standard-200k", "batch").
        mode: standard, batch (within a day), flex (when there is room), priority (preferred), fast (more tokens/s).
        above_context_len: Prompts longer than this pay these prices [tokens].
        usd_per_mtok_input: Uncached prompt tokens [USD per million tokens].
        usd_per_mtok_output: Generated tokens [USD per million tokens].
        usd_per_mtok_cached_input: Prompt tokens found in the cache [USD per million tokens].
        usd_per_mtok_hour_storage: Keeping tokens in the cache, where charged by time [USD per million tokens and hour].
        speed_ratio: Tokens per second of a fast mode over the standard mode, as advertised [ratio].
        cache_writes: Prices of writing to the cache by lifetime.
    """

    name: Text
    mode: ServiceMode = "standard"
    above_context_len: NonNegative = 0.0
    usd_per_mtok_input: Usd | None = None
    usd_per_mtok_output: Usd | None = None
    usd_per_mtok_cached_input: Usd | None = None
    usd_per_mtok_hour_storage: Usd | None = None
    speed_ratio: Positive | None = None
    cache_writes: tuple[CacheWriteRecord, ...] = ()


class PastPriceRecord(Record):
    """An earlier price of the same model.

    Args:
        name: A label, such as the date on which it ended.
        until: The last day of the price, None where only its order is known.
        usd_per_mtok_input, usd_per_mtok_output: [USD per million tokens].
    """

    name: Text
    until: Date | None = None
    usd_per_mtok_input: Usd
    usd_per_mtok_output: Usd


class PriceSheetRecord(SourcedRecord):
    """The prices of one model at one provider.

    Args:
        provider: Who sells it.
        sold_as: How the provider calls the model.
        model: Catalogue name of the model where its shape is public.
        date: When the prices held.
        max_context_len: Longest prompt that is accepted [tokens].
        tiers: In order of mode and context, standard first.
        history: Earlier prices, oldest first.
    """

    provider: Text
    sold_as: Text
    model: Text | None = None
    date: Date
    max_context_len: Positive | None = None
    tiers: Annotated[tuple[PriceTierRecord, ...], Field(min_length=1)]
    history: tuple[PastPriceRecord, ...] = ()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [tier.name for tier in self.tiers]
        if len(set(names)) < len(names):
            raise ValueError(f"tiers need different names; got {', '.join(names)}")
        return self


Percentile = Annotated[float, Field(gt=0.0, lt=100.0)]


class UseRecord(SourcedRecord):
    """What a model is used for.

    Args:
        input_len: Prompt tokens of a request, on average [token].
        output_len: Output tokens of a request, on average [token].
        cache_hit: Share of the prompt that is in the KV cache already.
        ttft_s: Largest time to first token; none where nobody waits [s].
        tpot_s: Largest time per output token; none where nobody waits [s].
        percentile: Of the requests that must meet the limits; 99 without it.
    """

    input_len: Annotated[float, Field(ge=1.0)]
    output_len: Annotated[float, Field(ge=2.0)]
    cache_hit: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    ttft_s: Positive | None = None
    tpot_s: Positive | None = None
    percentile: Percentile | None = None

    @model_validator(mode="after")
    def _percentile_of_a_limit(self) -> Self:
        if self.percentile is not None and self.ttft_s is None and self.tpot_s is None:
            raise ValueError("percentile without ttft_s or tpot_s")
        return self


Finite = Annotated[float, Field()]


class LossErrorRecord(Record):
    """Standard errors of the constants of a loss law, as published."""

    irreducible_loss: Positive
    params_coefficient: Positive
    tokens_coefficient: Positive
    params_exponent: Positive
    tokens_exponent: Positive


class LossRecord(LossErrorRecord):
    """Constants of L(N, D) = E + A / N**alpha + B / D**beta.

    Args:
        irreducible_loss: E [nat per token].
        params_coefficient: A.
        tokens_coefficient: B.
        params_exponent: alpha.
        tokens_exponent: beta.
        useful_repeats: R*, after how many repeats of the data most of their value is gone; only where fitted.
    """

    useful_repeats: Positive | None = None


class FrontierRecord(Record):
    """Constants of N_opt(C) = coefficient * C**exponent, the compute-optimal size for C FLOP.

    Args:
        coefficient: Parameters at 1 FLOP [count].
        exponent: Growth of the size with FLOP.
    """

    coefficient: Positive
    exponent: Positive


class ExpertRangeRecord(Record):
    """Between which numbers of experts a routed law bends.

    Args:
        experts_start: Number of experts below which nothing is gained [count].
        experts_max: Number of experts above which nothing more is gained [count].
    """

    experts_start: Positive
    experts_max: Positive


class RoutedRecord(ExpertRangeRecord):
    """Constants of log10 L = a log10 N + b log10 E + c log10 N log10 E + d.

    Args:
        params_slope: a.
        experts_slope: b.
        interaction_slope: c.
        intercept: d.
    """

    params_slope: Finite
    experts_slope: Finite
    interaction_slope: Finite
    intercept: Finite


class JointRecord(ExpertRangeRecord):
    """Constants of L = a E**delta N**(alpha + gamma ln E) + b E**omega D**(beta + zeta ln E) + c.

    Args:
        params_coefficient: a.
        tokens_coefficient: b.
        irreducible_loss: c.
        params_slope: alpha.
        tokens_slope: beta.
        params_experts_slope: delta.
        params_interaction_slope: gamma.
        tokens_experts_slope: omega.
        tokens_interaction_slope: zeta.
    """

    params_coefficient: Positive
    tokens_coefficient: Positive
    irreducible_loss: Positive
    params_slope: Finite
    tokens_slope: Finite
    params_experts_slope: Finite
    params_interaction_slope: Finite
    tokens_experts_slope: Finite
    tokens_interaction_slope: Finite


class LawRecord(SourcedRecord):
    """One published scaling law; exactly one of the tables.

    Args:
        loss: Loss of size and tokens.
        loss_standard_error: Standard errors of that.
        frontier: Best size of a compute budget.
        routed: Loss of active size and number of experts at fixed tokens.
        joint: Loss of active size, tokens and number of experts.
    """

    loss: LossRecord | None = None
    loss_standard_error: LossErrorRecord | None = None
    frontier: FrontierRecord | None = None
    routed: RoutedRecord | None = None
    joint: JointRecord | None = None

    @model_validator(mode="after")
    def _is_one_law(self) -> Self:
        given = [table for table in (self.loss, self.frontier, self.routed, self.joint) if table is not None]
        if len(given) != 1:
            raise ValueError("a law has exactly one of the tables loss, frontier, routed, joint")
        return self


class RunRecord(SourcedRecord):
    """One training run as published.

    Args:
        total_params: All parameters [count].
        active_params: Parameters that one token is multiplied with; all of them by default [count].
        tokens: Tokens of pre-training [token].
        released: Date of release, YYYY[-MM[-DD]].
        chip: Chip that it ran on: a catalogue name where there is one.
        peak_flop_per_s: Dense peak that the published MFU refers to, where the chip is not in the catalogue [FLOP/s].
        chip_hours: Chip-hours of the run [hour].
        mfu: Published share of the peak that the model's FLOP took.
    """

    total_params: Positive
    active_params: Positive | None = None
    tokens: Positive
    released: Date | None = None
    chip: Text | None = None
    peak_flop_per_s: Positive | None = None
    chip_hours: Positive | None = None
    mfu: Annotated[float, Field(gt=0.0, le=1.0)] | None = None

    @model_validator(mode="after")
    def _active_is_a_part(self) -> Self:
        if self.active_params is not None and self.active_params > self.total_params:
            raise ValueError(f"active_params {self.active_params:.4g} exceed total_params {self.total_params:.4g}")
        return self


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
        self.need_sources([*(f"rules.{name}" for name in self.rules), *(["adapters"] if self.adapters else [])])
        return self


class OrchestratorRecord(SourcedRecord):
    """What a manifest needs to know beside the plan.

    Args:
        version: Release of the orchestrator, or of the interface that its manifests follow.
        resources: Resource name under which a chip is asked for, by vendor.
        labels: Label of a node that names its chip, by vendor.
        products: Value of that label, by chip.
        images: Container image of an engine, by engine, then by chip or vendor; "{version}" is the engine's.
        engines: Version of each engine in the images, where the orchestrator fixes it.
        programs: Where an image has a program, by name; others are found by their names.
    """

    version: Text = Field(pattern=r"^v?\d+(\.\d+)*$")
    resources: Mapping[str, Text]
    labels: Mapping[str, Text] = Field(default_factory=dict)
    products: Mapping[str, Text] = Field(default_factory=dict)
    images: Mapping[str, Mapping[str, Text]]
    engines: Mapping[str, Text] = Field(default_factory=dict)
    programs: Mapping[str, Text] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _every_name_has_a_source(self) -> Self:
        tables = ("resources", "labels", "products", "images", "engines", "programs")
        self.need_sources(f"{table}.{key}" for table in tables for key in getattr(self, table))
        return self

"""What serves, before its layout is chosen (`System`), and what is asked of it (`Demand`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from rackline.arch import AggregateModel, AnyModel, Model
from rackline.catalog import names
from rackline.errors import require
from rackline.hardware import Chip, Cluster
from rackline.parallel import (
    Deployment,
    Layout,
    LayoutGrid,
    Precision,
    Routing,
    ServerMemory,
    build_table,
    precision,
    stage_imbalance,
)
from rackline.parallel.layout import KINDS, LayoutKind
from rackline.passes import Calibration, PassTable, calibration
from rackline.passes.features import Array, ExpertLaw, as_array
from rackline.serving.closed_loop import engine_of
from rackline.serving.stack import Stack, stack_named
from rackline.serving.steady import Engine
from rackline.serving.workload import PLAIN, Speculation, Workload
from rackline.units import Quantity, parse_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Everything about a deployment but its layout, put together once by `System.of`.

    Code that needs a default of the engine, a memory rule, the kernels or a deployment asks the system.

    Args:
        model: with its draft, media and adapter.
        cluster: with its price terms, power cap and number of chips.
        calibration: numbers of the kernels, with what the stack's version adds.
        stack: that runs them, with the defaults of its version on this chip and the memory it is allowed.
        precisions: data types to consider, at least one.
        routing: how tokens spread over experts.
        sample_bytes_per_logit: memory traffic of a logit while a token is drawn; 0 for greedy decoding [bytes].
    """

    model: AnyModel
    cluster: Cluster
    calibration: Calibration
    stack: Stack
    precisions: tuple[Precision, ...]
    routing: Routing
    sample_bytes_per_logit: float = 0.0

    @classmethod
    def of(
        cls,
        model: AnyModel,
        cluster: Cluster,
        *,
        calibration: Calibration,
        stack: Stack | str | None = None,
        precisions: Sequence[Precision] | None = None,
        routing: Routing | None = None,
        memory_fraction: float | None = None,
        top_p: bool = False,
    ) -> System:
        """Put a system together.

        Args:
            calibration: numbers of the kernels as measured.
            stack: that runs them, also as NAME or NAME=VERSION; that of the calibration by default.
            precisions: data types to consider; all that the chip supports by default, see `default_precisions`.
            routing: how tokens spread over experts; as measured under the stack by default.
            memory_fraction: share of a chip's memory that the server may use; the stack's own by default [1].
            top_p: whether tokens are sampled from the nucleus, which sorts logits in some versions.

        Raises:
            InputError: a memory fraction outside (0, 1].
            UnknownNameError, CatalogError: a stack that is not in the catalogue.
        """
        chip = cluster.chip
        runs = stack if isinstance(stack, Stack) else stack_named(stack, calibration, chip)
        if memory_fraction is not None:
            require(
                0.0 < memory_fraction <= 1.0,
                what="memory_fraction",
                given=memory_fraction,
                allowed="above 0 to 1",
                nearest="0.9",
            )
            runs = runs.with_values({"memory.memory_fraction": memory_fraction})
        return cls(
            model=model,
            cluster=cluster,
            calibration=runs.calibrated(
                calibration, chip.generation, model.num_layers if isinstance(model, Model) else 0
            ),
            stack=runs,
            precisions=tuple(precisions or default_precisions(model, chip)),
            routing=routing or runs.experts.routing,
            sample_bytes_per_logit=runs.kernels.sample_bytes_per_logit if top_p else 0.0,
        )

    @property
    def precision(self) -> Precision:
        """The data types of a system that has one precision, the first of several."""
        return self.precisions[0]

    def deployment(self, layout: Layout, precision: Precision | None = None) -> Deployment:
        """The deployment under a layout.

        Args:
            precision: its data types; the system's by default.

        Raises:
            LayoutError: the layout is impossible for the model or the cluster.
        """
        return Deployment(
            model=self.model,
            cluster=self.cluster,
            layout=layout,
            precision=precision or self.precision,
            calibration=self.calibration,
            routing=self.routing,
            sample_bytes_per_logit=self.sample_bytes_per_logit,
        )

    def table(
        self, layouts: Layout | LayoutGrid, precision: Precision | None = None, experts: ExpertLaw | None = None
    ) -> PassTable:
        """Pass table of a layout, or of all layouts of a grid at once.

        Args:
            precision: its data types; the system's by default.
            experts: load of the busiest expert-parallel rank, where it is tabulated already.
        """
        return build_table(
            self.model,
            self.cluster,
            layouts,
            precision or self.precision,
            self.calibration,
            self.routing,
            experts=experts,
            sample_bytes_per_logit=self.sample_bytes_per_logit,
        )

    def engines(self, table: PassTable, grid: LayoutGrid) -> Engine:
        """The engine of every layout of a grid under the stack, shape (layouts, 1).

        Args:
            table: of the layouts; see `table`.
        """
        stretch = as_array(stage_imbalance(self.model, grid.pp))  # a number where layers are not known
        return Engine(
            table=table,
            attention_dp=as_array(grid.attention_dp)[:, None],
            micro_batches=as_array(grid.pp)[:, None],
            stage_imbalance=stretch[:, None] if stretch.ndim else stretch,
            num_layers=self.model.num_layers if isinstance(self.model, Model) else 0,
            stack=self.stack,
        )

    def engine(self, layout: Layout, precision: Precision | None = None, speculation: Speculation = PLAIN) -> Engine:
        """Pass tables of a layout under the stack.

        Raises:
            LayoutError: as `deployment`.
        """
        return engine_of(self.deployment(layout, precision), self.stack, speculation)

    def server(self, batched_tokens: float | None = None) -> ServerMemory:
        """Memory of a chip that the server keeps besides weights and cache.

        Args:
            batched_tokens: token budget of a pass on one rank; the stack's by default [tokens].
        """
        return self.stack.server_memory(batched_tokens)

    def on(self, cluster: Cluster) -> System:
        """The same engine on another cluster: its kernels and defaults there, in types of the same labels."""
        chip, numbers = cluster.chip, self.calibration
        types = tuple(precision(one.label, self.model, chip) for one in self.precisions)
        if numbers.name not in names("calibrations"):  # a file's own: they have the stack's host time already
            return replace(self, cluster=cluster, precisions=types)
        return System.of(
            self.model,
            cluster,
            calibration=calibration(numbers.label, chip),
            precisions=types,
            routing=self.routing,
            memory_fraction=self.stack.memory.memory_fraction,
        )

    def with_chips(self, num_chips: int) -> System:
        """This system on another number of chips of the cluster."""
        return replace(self, cluster=self.cluster.with_num_chips(num_chips))


def default_precisions(model: AnyModel, chip: Chip) -> list[Precision]:
    """Precisions worth looking at: the released type and every narrower one that the chip multiplies.

    Each with the KV cache in bf16 and in fp8.
    """
    widths = {
        "fp32": 4,
        "bf16": 3,
        "fp16": 3,
        "int8": 2,
        "fp8": 2,
        "mxfp8": 2,
        "int4": 1,
        "fp4": 1,
        "mxfp4": 1,
        "q4_k_m": 1,
    }
    native = widths.get(model.native_precision.partition(",")[0], 3)
    eight_bits = "fp8" if chip.supports("fp8") else "int8"
    narrower = [name for name, wider in ((eight_bits, 3), ("fp4", 2)) if native >= wider and chip.supports(name)]
    labels = ["native", *narrower]
    if isinstance(model, AggregateModel):
        return [precision(label, model, chip) for label in labels]
    kv_types = ("bf16", "fp8") if chip.supports("fp8") else ("bf16",)
    return [precision(f"{label},kv={kv}", model, chip) for label in labels for kv in kv_types]


Objective = Literal["dollars", "joules"]
LEAST_CHANCE = 0.01  # that measured servers tell from none; as far below 1, from all


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """Room that predictions leave below limits, so that a share of the servers of their kind keeps each.

    Args:
        share: of the servers [1].
        tpot, ttft: measured over predicted that this share keeps, by kind of layout [ratio].
    """

    share: float
    tpot: Mapping[LayoutKind, float]
    ttft: Mapping[LayoutKind, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Limits on latency.

    Args:
        headroom: that predictions leave below the limits; None where they may reach them.
        tpot_s: largest time per output token, None for no limit [s].
        ttft_s: largest time to first token, None for no limit [s].
        tpot_percentile, ttft_percentile: of the requests that must keep it, below 100; None limits the mean.

    Raises:
        InputError: a limit that is not positive, a percentile outside (0, 100).
    """

    tpot_s: float | None = None
    ttft_s: float | None = None
    tpot_percentile: float | None = None
    ttft_percentile: float | None = None
    headroom: Headroom | None = None

    def __post_init__(self) -> None:
        for name, value in (("tpot_s", self.tpot_s), ("ttft_s", self.ttft_s)):
            require(value is None or value > 0, what=name, given=value, allowed="more than 0 s", nearest="0.03")
        for name, place in (("tpot_percentile", self.tpot_percentile), ("ttft_percentile", self.ttft_percentile)):
            require(
                place is None or 0.0 < place < 100.0,
                what=name,
                given=place,
                allowed="above 0 and below 100",
                nearest="99",
            )

    @classmethod
    def of(cls, tpot: Quantity | None, ttft: Quantity | None) -> Constraints:
        """Limits as they are written: such as 0.03 [s], "30ms" or "2s@p99"; None for no limit.

        Raises:
            InputError: another form.
        """
        tpot_s, tpot_percentile = (None, None) if tpot is None else parse_limit(tpot, name="tpot")
        ttft_s, ttft_percentile = (None, None) if ttft is None else parse_limit(ttft, name="ttft")
        return cls(tpot_s=tpot_s, ttft_s=ttft_s, tpot_percentile=tpot_percentile, ttft_percentile=ttft_percentile)

    def of_predictions(self, kind: LayoutKind) -> Constraints:
        """Limits on predictions of a kind of layout, below these by the headroom."""
        room = self.headroom
        if room is None:
            return self
        return replace(
            self,
            tpot_s=self.tpot_s and self.tpot_s / room.tpot[kind],
            ttft_s=self.ttft_s and self.ttft_s / room.ttft[kind],
            headroom=None,
        )

    def of_kinds(self, kinds: Array) -> tuple[Array, Array]:
        """The same on time per output token and to first token, infinite without a limit [s].

        Args:
            kinds: places among the kinds of layouts of single engines, any shape.
        """
        each = [self.of_predictions(kind) for kind in KINDS]
        tpot_s, ttft_s = (
            np.array([np.inf if limit is None else limit for limit in limits])
            for limits in zip(*((one.tpot_s, one.ttft_s) for one in each), strict=True)
        )
        return tpot_s[kinds], ttft_s[kinds]

    def latencies(self) -> list[tuple[str, float, float | None]]:
        """(name, limit [s], percentile or None for the mean) of those that are limited."""
        given = (
            ("tpot_s", self.tpot_s, self.tpot_percentile),
            ("ttft_s", self.ttft_s, self.ttft_percentile),
        )
        return [(name, limit, percentile) for name, limit, percentile in given if limit is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRisk:
    """One limit, against what servers of this kind measured.

    Args:
        metric: tpot_s or ttft_s.
        limit_s: as it was asked [s].
        percentile: that it is of; None for the mean.
        predicted_s: of the plan at its rate [s].
        chance: share of the servers of this kind that meet the limit at this rate, from 1 to 99 % [1].
        low_s, median_s, high_s: time that 5, 50 and 95 % of such servers stay below [s].
        likely_s: what such servers usually take [s].
        group: what the servers have in common.
        num_cases: of servers [count].
        num_laboratories: that measured them [count].
    """

    metric: str
    limit_s: float
    percentile: float | None
    predicted_s: float
    chance: float
    low_s: float
    median_s: float
    high_s: float
    likely_s: float
    group: str
    num_cases: int
    num_laboratories: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """How surely a plan keeps its limits.

    Args:
        limits: each with its chance.
        confidence: share of the servers for which each leaves headroom; None where none was asked for [1].
        usd_without: all cost over output tokens of the plan without headroom; None where there is no headroom, or no
            such plan [USD per million].
        usd: of the plan itself [USD per million].
    """

    json_keys: ClassVar = ("limits", "confidence", "usd_per_mtok_output_all_in_without=usd_without", "cost_ratio")

    limits: tuple[LimitRisk, ...]
    usd: float
    confidence: float | None = None
    usd_without: float | None = None

    @property
    def cost_ratio(self) -> float | None:
        """Cost over that of the plan without headroom [ratio]."""
        return None if self.usd_without is None else self.usd / self.usd_without


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requests, the limits that they must keep, and what is to be least.

    Args:
        workload: lengths of the requests.
        limits: on their latency.
        objective: what the answer has the least of, for an output token.
    """

    workload: Workload
    limits: Constraints = Constraints()
    objective: Objective = "dollars"

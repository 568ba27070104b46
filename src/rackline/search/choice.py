"""The answer of a plan: one deployment, aggregated or disaggregated, with its numbers, details and lower bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from rackline.parallel import Deployment, Layout, MemoryUse, Precision
from rackline.parallel.layout import LayoutKind
from rackline.parallel.memory import weight_bytes
from rackline.passes import UNIT, Batch, PassTime
from rackline.search.candidate import Basis, Candidate, Pool, PoolPair
from rackline.search.sustained_rate import SustainedRate
from rackline.serving.fleet import Power
from rackline.serving.workload import Mode, Workload

_LARGE_BATCH = 1.0e7  # sequences per rank at which reading the weights costs nothing per token


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """Lower bounds of one deployment, and how far above them it runs.

    Args:
        latency_s: blackboard step of a single sequence, which reads only the experts that it uses [s].
        full_read_s: all weights of a replica over the bandwidth of its chips (lecture C09), the floor of a batch that
            touches every expert [s].
        usd_per_mtok_output: cost of the longer of a token's own compute and KV reads (C11) [USD per million].
        latency_ratio, cost_ratio: prediction over lower bound [ratio].
    """

    latency_s: float
    full_read_s: float
    usd_per_mtok_output: float
    latency_ratio: float
    cost_ratio: float


def floors(
    deployment: Deployment, workload: Workload, tpot_s: float, usd_per_mtok_output: float, usd_per_chip_s: float
) -> Floors:
    """Lower bounds of a deployment, and the ratios of a candidate to them.

    Args:
        tpot_s, usd_per_mtok_output: those of the candidate [s], [USD per million].
        usd_per_chip_s: price of a chip [USD/s].
    """
    whole = sum(float(v) for v in weight_bytes(deployment.model, Layout(), deployment.precision).values())
    chips = deployment.layout.chips_per_replica
    full_read_s = whole / (chips * deployment.cluster.chip.hbm_bytes_per_s)
    table = deployment.table().with_calibration(UNIT)
    alone = Batch(decode_sequences=1.0, context_len=workload.mean_context, group_tokens=1.0)
    latency_s = float(table.seconds(alone))
    ranks = deployment.layout.attention_dp
    step = float(
        table.seconds(
            Batch(
                decode_sequences=_LARGE_BATCH,
                context_len=workload.mean_context,
                group_tokens=_LARGE_BATCH * ranks,
            )
        )
    )
    per_token = step / (_LARGE_BATCH * ranks * deployment.layout.pp)
    usd = per_token * chips * usd_per_chip_s * 1e6
    return Floors(
        latency_s=latency_s,
        full_read_s=full_read_s,
        usd_per_mtok_output=usd,
        latency_ratio=tpot_s / latency_s,
        cost_ratio=usd_per_mtok_output / usd,
    )


Serving = Literal["aggregated", "disaggregated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """Passes, memory and floors of a serving option.

    Args:
        decode: breakdown of a decode step.
        prefill: breakdown of a prefill pass.
        memory: memory of the fullest decode chip.
        prefill_memory: memory of the fullest chip of the prefill pool; None for a single engine.
        floors: lower bounds of the decode engine; None where ranks share a context.
    """

    decode: PassTime
    prefill: PassTime
    memory: MemoryUse
    prefill_memory: MemoryUse | None = None
    floors: Floors | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolInside:
    """A pool with the bottleneck of its passes and the memory of its fullest chip."""

    json_keys: ClassVar = ("*pool", "binding", "memory")

    pool: Pool
    binding: str
    memory: MemoryUse | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Power and energy at the request rate of a choice.

    Args:
        power: of a chip that decodes, on average.
        prefill_power: of a chip of the prefill pool; None for a single engine.
        power_w: of all chips that are paid for with their machines, those in no replica idle [W].
        joules_per_request: over the requests [J].
        joules_per_output_token: over their output tokens [J].
    """

    json_keys: ClassVar = (
        "chip_w=power.chip_w",
        "wall_w=power.wall_w",
        "basis=power.basis",
        "cap_w=power.cap_w",
        "prefill_chip_w=prefill_power.chip_w",
        "power_w",
        "joules_per_request",
        "joules_per_output_token",
    )

    power: Power
    prefill_power: Power | None
    power_w: float
    joules_per_request: float
    joules_per_output_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What the paid chips give: all replicas of a choice, with those of a second kind on chips that they leave free.

    Args:
        num_chips: in use [count].
        requests_per_s: arrivals at which the limits hold [requests/s].
        saturation_requests_per_s: with all slots taken [requests/s].
        output_tokens_per_s: of all replicas [tokens/s].
        usd_per_mtok_input, usd_per_mtok_output, usd_per_mtok_output_all_in: all cost over the tokens of both kinds
            [USD per million].
    """

    num_chips: int
    requests_per_s: float
    saturation_requests_per_s: float
    output_tokens_per_s: float
    usd_per_mtok_input: float
    usd_per_mtok_output: float
    usd_per_mtok_output_all_in: float

    @property
    def output_tokens_per_s_per_chip(self) -> float:
        """Over the chips in use [tokens/s]."""
        return self.output_tokens_per_s / self.num_chips

    @property
    def utilisation(self) -> float:
        """Rate at which the limits hold over that with all slots taken [1]."""
        return self.requests_per_s / self.saturation_requests_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The cheapest serving option of one kind: one engine for prefill and decode, or a pool for each.

    Layout, precision, mode and batch are those of the decode engine. After simulation, rate, latencies and costs are
    those at which the limits hold; before, those of the estimate.

    Args:
        workload: request lengths.
        estimate: the estimate that found it; `basis` states its kind.
        inside: passes, memory and floors at the batch of the estimate.
        sustained: the rate at which the limits hold in simulation; None if it was not simulated.
        not_simulated: why no rate was simulated at which its limits hold; the numbers are then those of the estimate.
        leftover: engines on paid chips that these replicas leave free. Rates and costs of this object are without
            them; `whole` and JSON have them with these engines, and JSON keeps those of these replicas in `main`.
        energy: power and energy at its rate; None before it is known, or where nothing is known of the chips' power.
    """

    json_keys: ClassVar = (
        "serving",
        "basis",
        "caveat",
        "layout",
        "precision",
        "mode",
        "batch_size",
        "max_num_seqs",
        "num_chips=whole.num_chips",
        "billed_chips",
        "tpot_s",
        "ttft_s",
        "tokens_per_s_per_user",
        "requests_per_s=whole.requests_per_s",
        "saturation_requests_per_s=whole.saturation_requests_per_s",
        "utilisation=whole.utilisation",
        "bound",
        "output_tokens_per_s_per_chip=whole.output_tokens_per_s_per_chip",
        "usd_per_mtok_input=whole.usd_per_mtok_input",
        "usd_per_mtok_output=whole.usd_per_mtok_output",
        "usd_per_mtok_output_all_in=whole.usd_per_mtok_output_all_in",
        "simulated=sustained.simulated",
        "not_simulated",
        "estimate.basis=estimate.basis",
        "estimate.caveat=estimate.caveat",
        "estimate.batch_size=engine.batch_size",
        "estimate.num_chips=estimate.num_chips",
        "estimate.tpot_s=estimate.tpot_s",
        "estimate.ttft_s=estimate.ttft_s",
        "estimate.tokens_per_s_per_user=estimate.tokens_per_s_per_user",
        "estimate.requests_per_s=estimate.requests_per_s",
        "estimate.output_tokens_per_s_per_chip=estimate.output_tokens_per_s_per_chip",
        "estimate.usd_per_mtok_output_all_in=estimate.usd_per_mtok_output_all_in",
        "estimate.usd_per_mtok_input=estimate.usd_per_mtok_input",
        "estimate.usd_per_mtok_output=estimate.usd_per_mtok_output",
        "estimate.prefill_utilisation=estimate.prefill_utilisation",
        "estimate.free_bytes=estimate.free_bytes",
        "prefill_pool=prefill_inside",
        "decode_pool=decode_inside",
        "kv_transfer=estimate.transfer",
        "memory=inside.memory",
        "binding=inside.decode.binds",
        "decode=inside.decode",
        "prefill=inside.prefill",
        "floors=inside.floors",
        "energy",
        "leftover",
        "main.num_chips=num_chips",
        "main.requests_per_s=requests_per_s",
        "main.saturation_requests_per_s=saturation_requests_per_s",
        "main.utilisation=utilisation",
        "main.output_tokens_per_s_per_chip=output_tokens_per_s_per_chip",
        "main.usd_per_mtok_input=usd_per_mtok_input",
        "main.usd_per_mtok_output=usd_per_mtok_output",
        "main.usd_per_mtok_output_all_in=usd_per_mtok_output_all_in",
    )

    workload: Workload
    estimate: Candidate | PoolPair
    inside: Inside
    sustained: SustainedRate | None = None
    not_simulated: str = ""
    leftover: Leftover | None = None
    energy: Energy | None = None

    @property
    def whole(self) -> Whole:
        """Rates and costs with engines on chips that are left over: what the choice was chosen by."""
        rate = self.requests_per_s_with_leftover
        part = self.requests_per_s / rate if self.leftover else 1.0
        return Whole(
            num_chips=self.num_chips + (self.leftover.num_chips if self.leftover else 0),
            requests_per_s=rate,
            saturation_requests_per_s=self.saturation_requests_per_s
            + (self.leftover.places * self.leftover.choice.saturation_requests_per_s if self.leftover else 0.0),
            output_tokens_per_s=self.output_tokens_per_s_per_chip * self.num_chips / part,
            usd_per_mtok_input=self.usd_per_mtok_input * part,
            usd_per_mtok_output=self.usd_per_mtok_output * part,
            usd_per_mtok_output_all_in=self.usd_per_mtok_output_all_in * part,
        )

    @property
    def requests_per_s_with_leftover(self) -> float:
        """Arrivals at which the limits hold, of all replicas of both kinds [requests/s]."""
        return self.requests_per_s + (self.leftover.requests_per_s if self.leftover else 0.0)

    @property
    def usd_with_leftover(self) -> float:
        """All cost over the output tokens of both kinds of replicas [USD per million]."""
        return self.whole.usd_per_mtok_output_all_in

    def latency_s(self, name: str, percentile: float | None) -> float:
        """A limited latency, tpot_s or ttft_s: its percentile where that was simulated, else its mean [s]."""
        if percentile is None or self.sustained is None:
            return self.tpot_s if name == "tpot_s" else self.ttft_s
        served = self.sustained.simulated
        return (served.tpot_s if name == "tpot_s" else served.ttft_s).at(percentile)

    @property
    def serving(self) -> Serving:
        """Whether one engine serves, or two pools do."""
        return "disaggregated" if isinstance(self.estimate, PoolPair) else "aggregated"

    @property
    def layout_kind(self) -> LayoutKind:
        """What measured servers of its kind have in common with it."""
        return self.estimate.layout_kind

    @property
    def basis(self) -> Basis:
        """Basis of rate, latencies and costs."""
        return "simulated" if self.sustained else self.estimate.basis

    @property
    def caveat(self) -> str:
        """Known error of the numbers; empty if they are simulated."""
        return "" if self.sustained else self.estimate.caveat

    def label(self) -> str:
        """A replica, or one of each pool, in short."""
        if isinstance(self.estimate, PoolPair):
            return self.estimate.label()
        return f"{replace(self.layout, dp=1).label()} · {self.precision.short()} · {self.mode.label()}"

    @property
    def prefill_pool(self) -> Pool | None:
        """The prefill pool; None for a single engine."""
        return self.estimate.prefill

    @property
    def decode_pool(self) -> Pool | None:
        """The decode pool; None for a single engine."""
        return self.estimate.decode

    @property
    def engine(self) -> Candidate | Pool:
        """The engine or pool that decodes."""
        return self.estimate.decode if isinstance(self.estimate, PoolPair) else self.estimate

    @property
    def layout(self) -> Layout:
        """Layout of the decode engine; dp is its number of replicas."""
        return self.engine.layout

    @property
    def precision(self) -> Precision:
        """Precision of the decode engine."""
        return self.engine.precision

    @property
    def mode(self) -> Mode:
        """Scheduler of the decode engine."""
        return self.engine.mode

    @property
    def num_chips(self) -> int:
        """Chips of all replicas."""
        return self.estimate.num_chips

    @property
    def billed_chips(self) -> int:
        """Chips that are paid for, in whole rented units [count]."""
        return self.estimate.billed_chips

    @property
    def batch_size(self) -> float:
        """Mean number of requests in flight on one replica [requests]."""
        return self.sustained.simulated.in_flight if self.sustained else float(self.engine.batch_size)

    @property
    def max_num_seqs(self) -> int:
        """Most running sequences of one rank and micro-batch [sequences]."""
        return self.sustained.max_num_seqs if self.sustained else self.engine.sequences_per_rank

    @property
    def tpot_s(self) -> float:
        """Mean time per output token [s]."""
        return self.sustained.simulated.tpot_s.mean if self.sustained else self.estimate.tpot_s

    @property
    def ttft_s(self) -> float:
        """Mean time to first token [s]."""
        return self.sustained.simulated.ttft_s.mean if self.sustained else self.estimate.ttft_s

    @property
    def tokens_per_s_per_user(self) -> float:
        """1 / tpot [tokens/s]."""
        return 1.0 / self.tpot_s

    @property
    def requests_per_s(self) -> float:
        """Arrival rate at all replicas at which the limits hold [requests/s]."""
        return self.sustained.requests_per_s if self.sustained else self.estimate.requests_per_s

    @property
    def saturation_requests_per_s(self) -> float:
        """Rate of the engines with all slots taken [requests/s]."""
        return self.sustained.saturation_requests_per_s if self.sustained else self.estimate.requests_per_s

    @property
    def utilisation(self) -> float:
        """Sustained rate over the saturation rate."""
        return self.requests_per_s / self.saturation_requests_per_s

    @property
    def output_tokens_per_s_per_chip(self) -> float:
        """Output over the chips in use [tokens/s]."""
        return self.requests_per_s * self.workload.output_len / self.num_chips

    @property
    def usd_per_mtok_output_all_in(self) -> float:
        """All cost over output tokens [USD per million]; chip-hours per million without a price."""
        return self.estimate.usd_per_mtok_output_all_in * self.estimate.requests_per_s / self.requests_per_s

    @property
    def prompt_cost_share(self) -> float:
        """Share of the cost that goes to prompts [1]."""
        if self.sustained is not None and isinstance(self.estimate, Candidate):
            return self.sustained.simulated.prompt_cost_share
        return 1.0 - self.estimate.usd_per_mtok_output / self.estimate.usd_per_mtok_output_all_in

    @property
    def usd_per_mtok_input(self) -> float:
        """Cost of prompts over input tokens [USD per million]; chip-hours per million without a price."""
        spread = self.workload.output_len / self.workload.input_len
        return self.usd_per_mtok_output_all_in * self.prompt_cost_share * spread

    @property
    def usd_per_mtok_output(self) -> float:
        """The rest of the cost over output tokens [USD per million]; chip-hours per million without a price."""
        return self.usd_per_mtok_output_all_in * (1.0 - self.prompt_cost_share)

    @property
    def bound(self) -> str:
        """What keeps the rate from being higher; empty where it was not simulated."""
        return self.sustained.bound if self.sustained else ""

    def with_sustained_rate(self, sustained: SustainedRate) -> Choice:
        """This choice with its simulated sustained rate."""
        served = replace(self, sustained=sustained)
        floors = self.inside.floors
        if floors is None:
            return served
        floors = replace(
            floors,
            latency_ratio=served.tpot_s / floors.latency_s,
            cost_ratio=served.usd_per_mtok_output / floors.usd_per_mtok_output,
        )
        return replace(served, inside=replace(self.inside, floors=floors))

    @property
    def prefill_inside(self) -> PoolInside | None:
        """The prefill pool with its bottleneck and the memory of its fullest chip; None for a single engine."""
        pool = self.estimate.prefill
        return pool and PoolInside(pool=pool, binding=self.inside.prefill.binds, memory=self.inside.prefill_memory)

    @property
    def decode_inside(self) -> PoolInside | None:
        """The same for the decode pool."""
        pool = self.estimate.decode
        return pool and PoolInside(pool=pool, binding=self.inside.decode.binds, memory=self.inside.memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Engines on chips of paid units that the replicas of an answer leave free.

    Args:
        choice: the engine, on the chips that lie free together.
        places: hosts with such chips [count].
    """

    json_keys: ClassVar = (
        "places",
        "num_chips",
        "layout=choice.layout",
        "precision=choice.precision",
        "mode=choice.mode",
        "batch_size=choice.batch_size",
        "requests_per_s",
        "tpot_s=choice.tpot_s",
        "ttft_s=choice.ttft_s",
        "basis=choice.basis",
    )

    choice: Choice
    places: int

    @property
    def num_chips(self) -> int:
        """Chips of all of them."""
        return self.places * self.choice.num_chips

    @property
    def requests_per_s(self) -> float:
        """Arrivals at which the limits hold, of all of them [requests/s]."""
        return self.places * self.choice.requests_per_s


TIE = 0.03
"""Costs that differ by no more than this share are equal: then the simpler deployment is taken."""


def simplicity(choice: Choice) -> tuple[int, ...]:
    """Return a sort key, smaller for what is simpler to run.

    Fewer kinds of replicas come first, then no pipeline, degrees that are powers of two, and no chips left over.
    """
    layouts = [pool.layout for pool in (choice.prefill_pool, choice.decode_pool) if pool is not None]
    layouts = layouts or [choice.layout]
    kinds = len(layouts)
    if choice.leftover is not None:
        layouts.append(choice.leftover.choice.layout)
        kinds += 1
    degrees = [degree for layout in layouts for degree in (layout.tp, layout.ep, layout.attention_dp, layout.cp)]
    used = choice.num_chips + (choice.leftover.num_chips if choice.leftover else 0)
    return (
        kinds,
        sum(layout.pp > 1 for layout in layouts),
        sum(degree & (degree - 1) != 0 for degree in degrees),
        int(used < choice.billed_chips),
    )


def simplest(choices: Sequence[Choice], cost: Callable[[Choice], float]) -> Choice:
    """Return the simplest of the choices that cost at most `TIE` more than the cheapest, of equal ones the cheapest."""
    least = min(cost(choice) for choice in choices)
    tied = [choice for choice in choices if cost(choice) <= least * (1.0 + TIE)]
    return min(tied, key=lambda choice: (simplicity(choice), cost(choice)))

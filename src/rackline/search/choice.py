"""The answer of a plan: one deployment, aggregated or disaggregated, with its numbers and details."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from rackline.parallel import Layout, MemoryUse, Precision
from rackline.passes import PassTime
from rackline.plain import plain
from rackline.search.candidate import Basis, Candidate
from rackline.search.floors import Floors
from rackline.search.pool_pair import Pool, PoolPair
from rackline.search.promise import Promise
from rackline.serving.workload import Mode, Workload

Serving = Literal["aggregated", "disaggregated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What a way to serve does and holds.

    Args:
        decode: a decode step, row by row.
        prefill: a prefill pass, row by row.
        memory: of the fullest chip that decodes.
        prefill_memory: of the fullest chip of a prefill pool; None where one engine does both.
        floors: of the engine that decodes; None where ranks share a context.
    """

    decode: PassTime
    prefill: PassTime
    memory: MemoryUse
    prefill_memory: MemoryUse | None = None
    floors: Floors | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The cheapest way to serve of one kind: an engine that prefills and decodes, or a pool for each.

    Layout, precision, mode and batch are those of what decodes. Once it was served, rate, latencies and costs are those
    at which its limits hold; before, those of the estimate.

    Args:
        workload: request lengths.
        estimate: the numbers by which it was found; `basis` says of what kind they are.
        inside: passes, memory and floors, at the batch of the estimate.
        promise: the rate at which the limits hold when it is served; None where it was not.
        not_simulated: why it was not served; then the numbers are those of the estimate.
    """

    workload: Workload
    estimate: Candidate | PoolPair
    inside: Inside
    promise: Promise | None = None
    not_simulated: str = ""

    @property
    def serving(self) -> Serving:
        """One engine, or two pools."""
        return "disaggregated" if isinstance(self.estimate, PoolPair) else "aggregated"

    @property
    def basis(self) -> Basis:
        """What rate, latencies and costs rest on."""
        return "simulated" if self.promise else self.estimate.basis

    @property
    def caveat(self) -> str:
        """Where the numbers are known to be off; empty for those that are simulated."""
        return "" if self.promise else self.estimate.caveat

    @property
    def prefill_pool(self) -> Pool | None:
        """The pool for prompts; None for one engine."""
        return self.estimate.prefill if isinstance(self.estimate, PoolPair) else None

    @property
    def decode_pool(self) -> Pool | None:
        """The pool that decodes; None for one engine."""
        return self.estimate.decode if isinstance(self.estimate, PoolPair) else None

    @property
    def engine(self) -> Candidate | Pool:
        """What decodes."""
        return self.estimate.decode if isinstance(self.estimate, PoolPair) else self.estimate

    @property
    def layout(self) -> Layout:
        """Of what decodes; dp counts its replicas."""
        return self.engine.layout

    @property
    def precision(self) -> Precision:
        """Of what decodes."""
        return self.engine.precision

    @property
    def mode(self) -> Mode:
        """Of what decodes."""
        return self.engine.mode

    @property
    def sequences_per_rank(self) -> int:
        """Of one rank and micro-batch, in the estimate [sequences]."""
        return self.engine.sequences_per_rank

    @property
    def num_chips(self) -> int:
        """Chips of all replicas."""
        return self.estimate.num_chips

    @property
    def batch_size(self) -> float:
        """Requests in flight on one replica, in the mean [requests]."""
        return self.promise.simulated.in_flight if self.promise else float(self.engine.batch_size)

    @property
    def max_num_seqs(self) -> int:
        """Sequences that one rank and micro-batch may run [sequences]."""
        return self.promise.max_num_seqs if self.promise else self.engine.sequences_per_rank

    @property
    def tpot_s(self) -> float:
        """Mean time per output token [s]."""
        return self.promise.simulated.tpot_s.mean if self.promise else self.estimate.tpot_s

    @property
    def ttft_s(self) -> float:
        """Mean time to first token [s]."""
        return self.promise.simulated.ttft_s.mean if self.promise else self.estimate.ttft_s

    @property
    def tokens_per_s_per_user(self) -> float:
        """1 / tpot [tokens/s]."""
        return 1.0 / self.tpot_s

    @property
    def requests_per_s(self) -> float:
        """Arrivals at which the limits hold, of all replicas [requests/s]."""
        return self.promise.requests_per_s if self.promise else self.estimate.requests_per_s

    @property
    def saturation_requests_per_s(self) -> float:
        """What the engines reach with all slots taken [requests/s]."""
        return self.promise.saturation_requests_per_s if self.promise else self.estimate.requests_per_s

    @property
    def utilisation(self) -> float:
        """Share of the saturation rate that is promised."""
        return self.requests_per_s / self.saturation_requests_per_s

    @property
    def output_tokens_per_s_per_chip(self) -> float:
        """Over the chips in use [tokens/s]."""
        return self.requests_per_s * self.workload.output_len / self.num_chips

    @property
    def usd_per_mtok_output_all_in(self) -> float:
        """All cost over output tokens [USD per million]; chip-hours per million without a price."""
        return self.estimate.usd_per_mtok_output_all_in * self.estimate.requests_per_s / self.requests_per_s

    @property
    def prompt_cost_share(self) -> float:
        """Share of the cost that prompts take."""
        if self.promise is not None and isinstance(self.estimate, Candidate):
            return self.promise.simulated.prompt_cost_share
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
    def memory(self) -> MemoryUse:
        """Of the fullest chip that decodes."""
        return self.inside.memory

    @property
    def binding(self) -> str:
        """What a decode step waits for."""
        return self.inside.decode.binds

    def with_promise(self, promise: Promise) -> Choice:
        """Served: with the rate that it can promise."""
        served = replace(self, promise=promise)
        floors = self.inside.floors
        if floors is None:
            return served
        floors = replace(
            floors,
            latency_ratio=served.tpot_s / floors.latency_s,
            cost_ratio=served.usd_per_mtok_output / floors.usd_per_mtok_output,
        )
        return replace(served, inside=replace(self.inside, floors=floors))

    def as_dict(self) -> dict[str, Any]:
        """Plain data with the same keys for one engine and for pools."""
        estimate, inside = plain(self.estimate), self.inside
        pools = {name: estimate.pop(name) for name in ("prefill_pool", "decode_pool", "kv_transfer")}
        if inside.prefill_memory is not None:
            for pool, time, memory in (
                ("prefill_pool", inside.prefill, inside.prefill_memory),
                ("decode_pool", inside.decode, inside.memory),
            ):
                pools[pool] |= {"binding": time.binds, "memory": plain(memory)}
        numbers = (
            "batch_size", "max_num_seqs", "num_chips", "tpot_s", "ttft_s", "tokens_per_s_per_user", "requests_per_s",
            "saturation_requests_per_s", "utilisation", "output_tokens_per_s_per_chip",
            "usd_per_mtok_input", "usd_per_mtok_output", "usd_per_mtok_output_all_in",
        )  # fmt: skip
        return {
            "serving": self.serving,
            "basis": self.basis,
            "caveat": self.caveat,
            **{name: estimate.pop(name) for name in ("layout", "precision", "mode")},
            **{name: getattr(self, name) for name in numbers},
            "simulated": plain(self.promise.simulated) if self.promise else None,
            "not_simulated": self.not_simulated,
            "estimate": estimate,
            **pools,
            "memory": plain(inside.memory),
            "binding": inside.decode.binds,
            "decode": plain(inside.decode),
            "prefill": plain(inside.prefill),
            "floors": plain(inside.floors) if inside.floors else None,
        }

"""The answer of a plan: one way to serve, of one engine or of two pools, with its numbers and what is inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rackline.parallel import Layout, MemoryUse, Precision
from rackline.passes import PassTime
from rackline.search.candidate import Candidate
from rackline.search.floors import Floors
from rackline.search.pool_pair import Pool, PoolPair
from rackline.serving.workload import Mode

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

    Layout, precision, mode and batch are those of what decodes.

    Args:
        steady: the numbers of the steady state.
        inside: passes, memory and floors.
    """

    steady: Candidate | PoolPair
    inside: Inside

    @property
    def serving(self) -> Serving:
        """One engine, or two pools."""
        return "disaggregated" if isinstance(self.steady, PoolPair) else "aggregated"

    @property
    def prefill_pool(self) -> Pool | None:
        """The pool for prompts; None for one engine."""
        return self.steady.prefill if isinstance(self.steady, PoolPair) else None

    @property
    def decode_pool(self) -> Pool | None:
        """The pool that decodes; None for one engine."""
        return self.steady.decode if isinstance(self.steady, PoolPair) else None

    @property
    def engine(self) -> Candidate | Pool:
        """What decodes."""
        return self.steady.decode if isinstance(self.steady, PoolPair) else self.steady

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
    def batch_size(self) -> int:
        """Sequences in flight on one replica [sequences]."""
        return self.engine.batch_size

    @property
    def sequences_per_rank(self) -> int:
        """Of one rank and micro-batch [sequences]."""
        return self.engine.sequences_per_rank

    @property
    def num_chips(self) -> int:
        """Chips of all replicas."""
        return self.steady.num_chips

    @property
    def tpot_s(self) -> float:
        """Mean time per output token [s]."""
        return self.steady.tpot_s

    @property
    def ttft_s(self) -> float:
        """Mean time to first token [s]."""
        return self.steady.ttft_s

    @property
    def tokens_per_s_per_user(self) -> float:
        """1 / tpot [tokens/s]."""
        return 1.0 / self.tpot_s

    @property
    def requests_per_s(self) -> float:
        """Of all replicas [requests/s]."""
        return self.steady.requests_per_s

    @property
    def output_tokens_per_s_per_chip(self) -> float:
        """Over the chips in use [tokens/s]."""
        return self.steady.output_tokens_per_s_per_chip

    @property
    def usd_per_mtok_input(self) -> float:
        """Cost of prompts over input tokens [USD per million]; chip-hours per million without a price."""
        return self.steady.usd_per_mtok_input

    @property
    def usd_per_mtok_output(self) -> float:
        """The rest of the cost over output tokens [USD per million]; chip-hours per million without a price."""
        return self.steady.usd_per_mtok_output

    @property
    def usd_per_mtok_output_all_in(self) -> float:
        """All cost over output tokens [USD per million]; chip-hours per million without a price."""
        return self.steady.usd_per_mtok_output_all_in

    @property
    def memory(self) -> MemoryUse:
        """Of the fullest chip that decodes."""
        return self.inside.memory

    @property
    def binding(self) -> str:
        """What a decode step waits for."""
        return self.inside.decode.binds

    def as_dict(self) -> dict[str, Any]:
        """Plain data with the same keys for one engine and for pools."""
        data: dict[str, Any] = {"serving": self.serving, **self.steady.as_dict()}
        inside = self.inside
        if inside.prefill_memory is not None:
            for pool, time, memory in (
                ("prefill_pool", inside.prefill, inside.prefill_memory),
                ("decode_pool", inside.decode, inside.memory),
            ):
                data[pool] |= {"binding": time.binds, "memory": memory.as_dict()}
        return data | {
            "memory": inside.memory.as_dict(),
            "binding": inside.decode.binds,
            "decode": inside.decode.as_dict(),
            "prefill": inside.prefill.as_dict(),
            "floors": inside.floors.as_dict() if inside.floors else None,
        }

"""All points of a plan at once: one array per quantity over (layouts, batches), for each precision and mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rackline.arch import AnyModel, Model
from rackline.hardware import Cluster
from rackline.parallel import (
    LayoutGrid,
    Precision,
    Routing,
    ServerMemory,
    build_table,
    expert_law,
    memory_use,
    pipeline_stretch,
)
from rackline.parallel.deployment import ExpertLoads
from rackline.passes import Batch, Calibration, ExpertLoad
from rackline.passes.features import Array, as_array
from rackline.search.candidate import output_rate
from rackline.search.launch_rules import Asked, LaunchRules, Role
from rackline.serving.stack import Stack, stack_of
from rackline.serving.steady import Engine, SteadyState, steady_state
from rackline.serving.workload import Mode, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Points of one precision and mode; arrays (layouts, batches).

    Args:
        layout_index: row → index into the list of layouts, shape (layouts,).
        free_bytes: what is left on the fullest chip; negative does not fit [bytes].
        state: latencies.
        output_tokens_per_s_per_chip: [tokens/s].
        engine: the tables that made it.
    """

    precision: Precision
    mode: Mode
    engine: Engine
    layout_index: Array
    free_bytes: Array
    state: SteadyState
    output_tokens_per_s_per_chip: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is looked at: layouts × precisions × modes × batches per rank."""

    model: AnyModel
    cluster: Cluster
    workload: Workload
    grid: LayoutGrid
    precisions: Sequence[Precision]
    modes: Sequence[Mode]
    calibration: Calibration
    routing: Routing
    batches: Array
    memory_fraction: float
    threads: int = 2
    rules: LaunchRules | None = None

    @property
    def combinations(self) -> int:
        """Distinct layout × precision × mode combinations; overlap only where attention-dp ranks exchange tokens."""
        overlapped = int(np.sum(self.grid.attention_dp > 1))
        per_precision = sum(overlapped if mode.two_batch_overlap else len(self.grid) for mode in self.modes)
        return per_precision * len(self.precisions)

    def launches(self, precision: Precision, mode: Mode, role: Role = "both", cp: int = 1) -> Array:
        """Whether the engine starts each layout, shape (layouts,); all of them without rules.

        Args:
            cp: ranks that share a context [count].
        """
        if self.rules is None:
            return np.ones(len(self.grid), dtype=bool)
        asked = Asked(
            model=self.model,
            cluster=self.cluster,
            sharding=self.grid,
            precision=precision,
            mode=mode,
            role=role,
            cp=cp,
        )
        return self.rules.launches(asked)

    @property
    def stack(self) -> Stack:
        """The stack that the calibration belongs to, on this chip."""
        return stack_of(self.calibration, self.cluster.chip.hbm_bytes)

    def server(self, batched_tokens: float | None = None) -> ServerMemory:
        """What a server of the space keeps of a chip."""
        return self.stack.memory(batched_tokens, self.memory_fraction)

    def free_bytes(self, precision: Precision, batched_tokens: float) -> Array:
        """Bytes left on the fullest chip at every (layout, batch); linear in the sequences."""
        pp = as_array(self.grid.pp)
        empty, one = (
            as_array(
                memory_use(
                    self.model,
                    self.grid,
                    precision,
                    self.cluster.chip,
                    self.server(batched_tokens),
                    sequences_per_rank=count * pp,
                    context_len=self.workload.final_context,
                ).free
            )
            for count in (0.0, 1.0)
        )
        return empty[:, None] + (one - empty)[:, None] * self.batches[None, :]

    def engine(self, precision: Precision, law: ExpertLoad | ExpertLoads | None) -> Engine:
        """Pass tables of all layouts in one precision.

        Args:
            law: load of the busiest expert-parallel rank of each layout.
        """
        stretch = as_array(pipeline_stretch(self.model, self.grid.pp))
        table = build_table(self.model, self.cluster, self.grid, precision, self.calibration, self.routing, experts=law)
        return Engine(
            table=table,
            attention_dp=as_array(self.grid.attention_dp)[:, None],
            micro_batches=as_array(self.grid.pp)[:, None],
            pipeline_stretch=stretch[:, None] if stretch.ndim else stretch,
            num_layers=self.model.num_layers if isinstance(self.model, Model) else 0,
            stack=self.stack,
        )

    def engines(self) -> Iterator[tuple[Precision, Engine]]:
        """The pass tables of each precision."""
        law = expert_law(self.model, self.grid, self.routing)
        for precision in self.precisions:
            yield precision, self.engine(precision, law)

    def decode_s(self, engine: Engine, two_batch_overlap: bool) -> Array:
        """Decode steps of every layout and batch, shape (layouts, batches) [s]."""
        return engine.decode_s(
            Batch(decode_sequences=self.batches[None, :], context_len=self.workload.mean_context),
            engine.time_table(two_batch_overlap),
            two_batch_overlap=two_batch_overlap,
            threads=self.threads,
        )

    def blocks(self) -> Iterator[Block]:
        """Evaluate every point, one precision and mode after the other."""
        per_replica = self.batches[None, :] * as_array(self.grid.attention_dp * self.grid.pp)[:, None]
        chips = as_array(self.grid.chips_per_replica)[:, None]
        everything = np.arange(len(self.grid))
        exchanging = self.grid.attention_dp > 1
        b = self.batches[None, :]
        for precision, engine in self.engines():
            decode: dict[bool, Array] = {}
            for mode in self.modes:
                overlap = mode.two_batch_overlap
                if overlap not in decode:
                    decode[overlap] = self.decode_s(engine, overlap)
                state = steady_state(engine, self.workload, mode, b, decode_s=decode[overlap], threads=self.threads)
                free = self.free_bytes(precision, mode.max_batched_tokens)
                rate = output_rate(self.workload, per_replica, state.tpot_s, state.hold_s) / chips
                if overlap:
                    rate = np.where(exchanging[:, None] & (b >= 2), rate, np.nan)  # one sequence has no halves
                rate = np.where(self.launches(precision, mode)[:, None], rate, np.nan)
                yield Block(
                    precision=precision,
                    mode=mode,
                    engine=engine,
                    layout_index=everything,
                    free_bytes=free,
                    state=state,
                    output_tokens_per_s_per_chip=rate,
                )

"""The space of a plan, and its pass tables: some layouts at a time, all batches at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rackline.arch import AnyModel
from rackline.hardware import Cluster, paid_share
from rackline.parallel import (
    LayoutGrid,
    Precision,
    expert_law,
    memory_use,
)
from rackline.parallel.deployment import ExpertLoads
from rackline.passes import Batch, ExpertLoad
from rackline.passes.features import Array, as_array
from rackline.search.candidate import price_per_chip_s
from rackline.search.launch_rules import Asked, LaunchRules, Role
from rackline.serving.steady import Engine
from rackline.serving.workload import Mode, Workload
from rackline.system import System

LAYOUTS_AT_ONCE = 2048  # bounds the memory of a search over thousands of chips


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A search space: layouts × precisions × modes × batches per rank.

    Args:
        system: what serves; its precisions are those of the space.
        rules: what the engine launches; None for every layout.
    """

    system: System
    workload: Workload
    grid: LayoutGrid
    modes: Sequence[Mode]
    batches: Array
    threads: int = 2
    rules: LaunchRules | None = None

    @property
    def model(self) -> AnyModel:
        return self.system.model

    @property
    def cluster(self) -> Cluster:
        return self.system.cluster

    @property
    def precisions(self) -> Sequence[Precision]:
        return self.system.precisions

    @property
    def combinations(self) -> int:
        """Distinct layout × precision × mode combinations; overlap only where attention-dp ranks exchange tokens."""
        overlapped = int(np.sum(self.grid.attention_dp > 1))
        per_precision = sum(overlapped if mode.two_batch_overlap else len(self.grid) for mode in self.modes)
        return per_precision * len(self.precisions)

    def launches(self, precision: Precision, mode: Mode, role: Role = "both", cp: int = 1) -> Array:
        """Whether the engine supports each layout, shape (layouts,); true for all without launch rules.

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
    def usd_per_chip_s(self) -> Array:
        """Cost of a chip in use, including unused chips that are paid for, shape (layouts,) [USD/s]."""
        return price_per_chip_s(self.cluster)[0] * paid_share(self.cluster, self.grid.chips_per_replica)

    def free_bytes(self, precision: Precision, batched_tokens: float, cp: int = 1) -> Array:
        """Free bytes on the fullest chip at every (layout, batch); linear in the sequences.

        Args:
            cp: ranks that share each context [count].
        """
        pp = as_array(self.grid.pp)
        empty, one = (
            as_array(
                memory_use(
                    self.model,
                    self.grid,
                    precision,
                    self.cluster.chip,
                    self.system.server(batched_tokens),
                    sequences_per_rank=count * pp,
                    context_len=self.workload.final_context,
                ).free
            )
            for count in (0.0, 1.0)
        )
        return empty[:, None] + (one - empty)[:, None] * (self.batches / cp)[None, :]

    def holds_longest(self, precision: Precision, batched_tokens: float, cp: int = 1, *, prompt: bool = False) -> Array:
        """Whether each layout has room for the longest request of a mixture, (layouts,); of equal ones it has.

        Args:
            cp: ranks that share a context [count].
            prompt: of a prefill pool, which holds the prompt alone.
        """
        mixture = self.workload.mixture
        if mixture is None:
            return np.ones(len(self.grid), dtype=bool)
        longest = float(np.max(mixture.input_len)) if prompt else mixture.longest_context
        free = memory_use(
            self.model,
            self.grid,
            precision,
            self.cluster.chip,
            self.system.server(batched_tokens),
            sequences_per_rank=1.0,
            context_len=longest / cp,
        ).free
        return np.broadcast_to(as_array(free) >= 0.0, (len(self.grid),))

    def engine(self, precision: Precision, law: ExpertLoad | ExpertLoads | None) -> Engine:
        """Pass tables of all layouts in one precision.

        Args:
            law: load of the busiest expert-parallel rank of each layout.
        """
        return self.system.engines(self.system.table(self.grid, precision, law), self.grid)

    def parts(self) -> Iterator[Part]:
        """Parts of the layouts, each in every precision, so that memory holds the tables of one part at a time."""
        law = expert_law(self.model, self.grid, self.system.routing)
        for start in range(0, len(self.grid), LAYOUTS_AT_ONCE):
            some = slice(start, start + LAYOUTS_AT_ONCE)
            space = replace(self, grid=self.grid.take(some))
            here = law.take(some) if isinstance(law, ExpertLoads) else law
            for label, precision in enumerate(self.precisions):
                yield Part(
                    space=space, start=start, label=label, precision=precision, engine=space.engine(precision, here)
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some layouts of a space in one precision, with their pass tables.

    Args:
        space: the space of these layouts only.
        start: index of the first layout in the whole space.
        label: index of the precision.
        engine: their pass tables.
    """

    space: Space
    start: int
    label: int
    precision: Precision
    engine: Engine
    _decode_s: dict[bool, Array] = field(default_factory=dict[bool, Array], init=False, repr=False, compare=False)
    _free_bytes: dict[tuple[float, int], Array] = field(
        default_factory=dict[tuple[float, int], Array], init=False, repr=False, compare=False
    )

    def take(self, rows: Array) -> Part:
        """A selection of the layouts by index, shape (layouts,); decode steps that are known are kept."""
        space = replace(self.space, grid=self.space.grid.take(rows))
        found = replace(self, space=space, engine=self.engine.take(rows))
        found._decode_s.update({overlap: seconds[rows] for overlap, seconds in self._decode_s.items()})
        return found

    def decode_s(self, two_batch_overlap: bool) -> Array:
        """Decode steps of every layout and batch, shape (layouts, batches) [s]."""
        if two_batch_overlap not in self._decode_s:
            self._decode_s[two_batch_overlap] = self.engine.decode_s(
                Batch(decode_sequences=self.space.batches[None, :], context_len=self.space.workload.mean_context),
                self.engine.time_table(two_batch_overlap),
                two_batch_overlap=two_batch_overlap,
                threads=self.space.threads,
            )
        return self._decode_s[two_batch_overlap]

    def free_bytes(self, batched_tokens: float, cp: int = 1) -> Array:
        """Free bytes on the fullest chip at every layout and batch; see `Space.free_bytes`."""
        if (batched_tokens, cp) not in self._free_bytes:
            self._free_bytes[batched_tokens, cp] = self.space.free_bytes(self.precision, batched_tokens, cp)
        return self._free_bytes[batched_tokens, cp]

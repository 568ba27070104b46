"""The changes with which requests fit that do not fit on a cluster, tried in the order of what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rackline.hardware import billed_chips, host_bytes_per_s, memory_tier
from rackline.parallel import Layout, LayoutGrid, Precision, memory_use
from rackline.passes import Batch
from rackline.passes.features import Array, as_array
from rackline.search.candidate import price_per_chip_s
from rackline.search.misfit import (
    HOST_MEMORY,
    Change,
    ChangeKind,
    ChipMemory,
    Cost,
    Misfit,
    change_of,
    larger_chips,
    more_chips,
    until_it_fits,
)
from rackline.search.space import every_layout
from rackline.system import System, default_precisions
from rackline.units import format_bytes, format_seconds

MOST_MEMORY_FRACTION = 0.95
"""Share of a chip's memory that operators are told to give a server where the default of 0.9 is too little
(mintlify.com/vllm-project/vllm/configuration/optimization, accessed 2026-11-24); more is left to them."""
_OFFLOADED = "{:.0f} GiB of weights a chip on the host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Requests that must fit at once.

    Args:
        context_len: of each at its end [tokens].
        requests: on the cluster; None for one on each rank [requests].
        layouts: that were asked for; all without.
        batched_tokens: of the smallest pass; the stack's default by default [tokens].
    """

    system: System
    context_len: float
    requests: int | None = None
    layouts: Sequence[Layout] | None = None
    batched_tokens: float | None = None

    def per_rank(self, grid: LayoutGrid) -> Array:
        """Sequences of a rank and micro-batch of each layout, (layouts,)."""
        replicas = np.maximum(self.system.cluster.num_chips // as_array(grid.chips_per_replica), 1.0)
        return np.ceil((self.requests or 1) / (replicas * grid.attention_dp * grid.pp))


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Which layouts hold what was asked, in each precision.

    Args:
        asked: as it was.
        grid: all layouts.
        free_bytes: bytes left on the fullest chip, shape (precisions, layouts) [bytes].
    """

    asked: Asked
    grid: LayoutGrid
    free_bytes: Array

    @classmethod
    def of(cls, asked: Asked) -> Held | None:
        """Look at every layout; None where there is none."""
        system = asked.system
        layouts = every_layout(system) if asked.layouts is None else list(asked.layouts)
        if not layouts:
            return None
        grid = LayoutGrid.of(layouts)
        sequences = asked.per_rank(grid) * as_array(grid.pp)
        uses = (
            memory_use(
                system.model,
                grid,
                types,
                system.cluster.chip,
                system.server(asked.batched_tokens),
                sequences_per_rank=sequences,
                context_len=asked.context_len,
            )
            for types in system.precisions
        )
        return cls(
            asked=asked,
            grid=grid,
            free_bytes=np.array([np.broadcast_to(as_array(use.free), len(grid)) for use in uses]),
        )

    @property
    def fits(self) -> bool:
        """Whether any does."""
        return bool(np.any(self.free_bytes >= 0.0))

    @property
    def roomiest(self) -> tuple[Precision, Layout]:
        """With the most room, or that lacks least."""
        label, row = np.unravel_index(int(np.argmax(self.free_bytes)), self.free_bytes.shape)
        return self.asked.system.precisions[label], self.grid.layout(int(row))

    def memory(self) -> ChipMemory:
        """Of the fullest chip with the most room."""
        types, layout = self.roomiest
        asked, grid = self.asked, LayoutGrid.of([layout])
        use = asked.system.deployment(layout, types).memory(
            sequences=float(asked.per_rank(grid)[0]) * layout.pp * layout.attention_dp,
            context_len=asked.context_len,
            server=asked.system.server(asked.batched_tokens),
        )
        return ChipMemory.of_server(f"{layout.label()} · {types.short()}", use)


Costing = Callable[[Held], Cost]
"""Time and dollars of what holds the requests."""


def decoding_cost(held: Held, host_s: float = 0.0) -> Cost:
    """A step in which every request gets a token, on the fastest layout that holds them.

    Args:
        host_s: that each step takes longer, such as for weights from the host [s].
    """
    asked = held.asked
    system, best = asked.system, (np.inf, "")
    keep = np.any(held.free_bytes >= 0.0, axis=0) if held.fits else np.ones(len(held.grid), dtype=bool)
    grid = held.grid.take(np.flatnonzero(keep))
    batch = Batch(decode_sequences=asked.per_rank(grid)[:, None], context_len=asked.context_len)
    for label, types in enumerate(system.precisions):
        engine = system.engines(system.table(grid, types), grid)
        step_s = engine.decode_s(batch, engine.time_table(False), two_batch_overlap=False)[:, 0]
        step_s = np.where(held.free_bytes[label, keep] >= 0.0, step_s, np.inf) if held.fits else step_s
        row = int(np.argmin(step_s))
        best = min(best, (float(step_s[row]), f"{grid.layout(row).label()} · {types.short()}"))
    step_s = best[0] + host_s
    usd_per_s = price_per_chip_s(system.cluster)[0] * float(billed_chips(system.cluster, system.cluster.num_chips))
    return Cost(layout=best[1], step_s=step_s, usd_per_mtok=usd_per_s * step_s / (asked.requests or 1) * 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingChanges:
    """The changes that are tried.

    Args:
        asked: that do not fit.
        costing: time and dollars of what holds them.
        context: how a shorter context is asked for: the option, and the tokens of the context that are not of it; None
            where it cannot be.
        tpot_s: longest time per output token; None for any [s].
    """

    asked: Asked
    costing: Costing = decoding_cost
    context: tuple[str, float] | None = ("--context", 0.0)
    tpot_s: float | None = None

    def misfit(self) -> Misfit | None:
        """Why nothing fits and what would; None where no layout is possible."""
        held = Held.of(self.asked)
        if held is None:
            return None
        kinds = (self._layout, self._memory_fraction, self._precision, self._offload, self._requests)
        kinds += (self._context, self._chips, self._cluster)
        return Misfit(
            memory=held.memory(),
            tried=tuple(change for kind in kinds for change in kind()),
            unit="output",
            priced=self.asked.system.cluster.usd_per_chip_hour is not None,
        )

    def _tried(self, kind: ChangeKind, setting: str, asked: Asked, gives_up: str = "") -> Change:
        """The change with its memory, and with its time and dollars where it fits."""
        held, on = Held.of(asked), asked.system.cluster
        cost = self.costing(held) if held is not None and held.fits else None
        memory = None if held is None else held.memory()
        return change_of(kind, setting, on, gives_up, memory, cost)

    def _with(self, kind: ChangeKind, settings: dict[str, System], gives_up: str = "") -> list[Change]:
        """The first of some systems, those that cost least first, with which it fits."""
        tries = (self._tried(kind, text, replace(self.asked, system=one), gives_up) for text, one in settings.items())
        return until_it_fits(tries)

    def _layout(self) -> list[Change]:
        if self.asked.layouts is None:
            return []
        return [self._tried("layout", "without --layout", replace(self.asked, layouts=None))]

    def _memory_fraction(self) -> list[Change]:
        system = self.asked.system
        if system.stack.memory_fraction >= MOST_MEMORY_FRACTION:
            return []
        stack = replace(system.stack, memory_fraction=MOST_MEMORY_FRACTION)
        setting = f"--memory-fraction {MOST_MEMORY_FRACTION:g}"
        return self._with("memory_fraction", {setting: replace(system, stack=stack)})

    def _precision(self) -> list[Change]:
        system = self.asked.system
        known = {one.short() for one in system.precisions}
        narrower = [one for one in default_precisions(system.model, system.cluster.chip) if one.short() not in known]
        settings = {f"--precision {one.label}": replace(system, precisions=(one,)) for one in narrower}
        return self._with("precision", settings, "precision")

    def _offload(self) -> list[Change]:
        """Weights in the memory of the host, read in every step over the chip's link to it.

        Assumes: reads are not hidden behind the compute, and the host holds what all its chips leave there.

        Sources: Qwen2-7B in bf16 on one RTX 4090 under vLLM gave 1.65 tokens/s with all weights on the host and 56.87
            without (redlib.mooo.com/r/Vllm/hot, accessed 2026-11-24); this gives 1.60 of the second.
        """
        held = Held.of(self.asked)
        if held is None:
            return []
        memory, on = held.memory(), self.asked.system.cluster
        moved = -memory.free_bytes
        room = memory_tier(HOST_MEMORY).capacity_bytes / min(on.host_chips, on.num_chips)
        setting = _OFFLOADED.format(np.ceil(moved / 2**30))
        reason = ""
        if moved > memory.parts["weights"]:
            reason = f"the cache alone is {format_bytes(moved - memory.parts['weights'])} too much on a chip"
        elif moved > room:
            reason = f"a chip's share of its host's memory is {format_bytes(room)}"
        if reason:
            return [change_of("offload", setting, on, "", memory, None, reason)]
        types, layout = held.roomiest
        alone = replace(self.asked, system=replace(self.asked.system, precisions=(types,)), layouts=[layout])
        only = Held.of(alone)
        if only is None:
            return []
        cost = decoding_cost(only, moved / host_bytes_per_s(on.chip))
        if self.tpot_s is not None and cost.step_s > self.tpot_s:
            cost = replace(cost, reason=f"fits, but a token takes {format_seconds(cost.step_s)}")
        kept = {**memory.parts, "weights": memory.parts["weights"] - moved}
        return [change_of("offload", setting, on, "", replace(memory, parts=kept), cost)]

    def _requests(self) -> list[Change]:
        most = self.asked.requests
        if most is None or most == 1:
            return []
        low = _largest(most, lambda count: self._holds(requests=count))
        setting = f"--concurrency {max(low, 1)}"
        return [self._tried("requests", setting, replace(self.asked, requests=max(low, 1)), "requests at once")]

    def _context(self) -> list[Change]:
        if self.context is None:
            return []
        option, beside = self.context
        longest = _largest(int(self.asked.context_len), lambda count: self._holds(context_len=float(count)))
        shown = longest - int(beside)
        if shown < 1:
            held = Held.of(replace(self.asked, context_len=beside + 1.0))
            memory = None if held is None else held.memory()
            return [change_of("context", f"{option} 1", self.asked.system.cluster, "longer contexts", memory, None)]
        if shown > 1000:  # as it is typed, and no longer than what fits
            shown = shown // 1000 * 1000
        setting = f"{option} {shown}"
        return [
            self._tried("context", setting, replace(self.asked, context_len=float(shown + beside)), "longer contexts")
        ]

    def _holds(self, **change: float) -> bool:
        held = Held.of(replace(self.asked, **change))
        return held is not None and held.fits

    def _chips(self) -> list[Change]:
        system = self.asked.system
        freed = "" if self.asked.layouts is None else ", without --layout"
        tries = (
            self._tried("chips", f"--chips {count}{freed}", replace(self.asked, system=more, layouts=None))
            for count in more_chips(system.cluster)
            for more in [system.on(system.cluster.with_num_chips(count))]
        )
        return until_it_fits(tries)

    def _cluster(self) -> list[Change]:
        """As many chips with more memory each, of the same vendor, those of the least rent first."""
        asked, others = self.asked, larger_chips(self.asked.system.cluster)
        return self._with(
            "cluster", {f"--on {one.name} --chips {one.num_chips}": asked.system.on(one) for one in others}
        )


def _largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest whole number up to a limit that holds; 0 where 1 does not."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low

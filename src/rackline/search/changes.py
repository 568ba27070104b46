"""The changes with which requests or a training run fit on a cluster, tried in the order of what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rackline.errors import LayoutError
from rackline.hardware import Cluster, billed_chips, host_bytes_per_s, memory_tier
from rackline.parallel import Layout, LayoutGrid, Precision, memory_use
from rackline.passes import Batch, calibration
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
from rackline.search.train import TrainPlan, candidates, train_plan
from rackline.search.train_space import evaluate_runs, train_space, whole_batch
from rackline.system import System, default_precisions
from rackline.training.memory import MARGIN, TrainMemory, train_memory
from rackline.training.practice import Practice, practice_of
from rackline.training.runs import Runs, TrainLayout
from rackline.training.stack import OPTIMIZERS, train_precision, with_frozen
from rackline.training.system import MicroBatch, TrainingSystem
from rackline.units import format_bytes, format_seconds

# share of a chip's memory that operators are told to give a server where the default of 0.9 is too little
# (mintlify.com/vllm-project/vllm/configuration/optimization, accessed 2026-11-24); more is left to them
MOST_MEMORY_FRACTION = 0.95


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
        free = [np.broadcast_to(as_array(use.free), len(grid)) for use in uses]
        return cls(asked=asked, grid=grid, free_bytes=np.array(free))

    @property
    def fits(self) -> bool:
        """Whether any does."""
        return bool(np.any(self.free_bytes >= 0.0))

    @property
    def roomiest(self) -> tuple[Precision, Layout]:
        """The precision and layout with the most room, or that lack least."""
        label, row = np.unravel_index(int(np.argmax(self.free_bytes)), self.free_bytes.shape)
        return self.asked.system.precisions[label], self.grid.layout(int(row))

    def memory(self) -> ChipMemory:
        """Memory of the fullest chip under the layout with the most room."""
        types, layout = self.roomiest
        asked, grid = self.asked, LayoutGrid.of([layout])
        use = asked.system.deployment(layout, types).memory(
            sequences=float(asked.per_rank(grid)[0]) * layout.pp * layout.attention_dp,
            context_len=asked.context_len,
            server=asked.system.server(asked.batched_tokens),
        )
        return ChipMemory.of_server(f"{layout.label()} · {types.short()}", use)


Costing = Callable[[Held], Cost]  # time and dollars of what holds the requests


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
    usd_per_s = price_per_chip_s(system.cluster) * float(billed_chips(system.cluster, system.cluster.num_chips))
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
        return until_it_fits(
            self._tried(kind, text, replace(self.asked, system=one), gives_up) for text, one in settings.items()
        )

    def _layout(self) -> list[Change]:
        free = replace(self.asked, layouts=None)
        return [] if self.asked.layouts is None else [self._tried("layout", "without --layout", free)]

    def _memory_fraction(self) -> list[Change]:
        system, most = self.asked.system, MOST_MEMORY_FRACTION
        more = replace(system, stack=system.stack.with_values({"memory.memory_fraction": most}))
        usual = system.stack.memory.memory_fraction < most
        return self._with("memory_fraction", {f"--memory-fraction {most:g}": more} if usual else {})

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
        setting = f"{np.ceil(moved / 2**30):.0f} GiB of weights a chip on the host"
        if moved > min(memory.parts["weights"], room):
            reason = f"a chip's share of its host's memory is {format_bytes(room)}"
            if moved > memory.parts["weights"]:
                reason = f"the cache alone is {format_bytes(moved - memory.parts['weights'])} too much on a chip"
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
        count = max(_largest(most, lambda count: self._holds(requests=count)), 1)
        fewer = replace(self.asked, requests=count)
        return [self._tried("requests", f"--concurrency {count}", fewer, "requests at once")]

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
        shown = shown // 1000 * 1000 if shown > 1000 else shown  # as it is typed, and no longer than what fits
        shorter = replace(self.asked, context_len=float(shown + beside))
        return [self._tried("context", f"{option} {shown}", shorter, "longer contexts")]

    def _holds(self, **change: float) -> bool:
        held = Held.of(replace(self.asked, **change))
        return held is not None and held.fits

    def _chips(self) -> list[Change]:
        system, freed = self.asked.system, "" if self.asked.layouts is None else ", without --layout"
        return until_it_fits(
            self._tried("chips", f"--chips {count}{freed}", replace(self.asked, system=more, layouts=None))
            for count in more_chips(system.cluster)
            for more in [system.on(system.cluster.with_num_chips(count))]
        )

    def _cluster(self) -> list[Change]:
        """The same number of chips with more memory each, of the same vendor, those of the least rent first."""
        system = self.asked.system
        others = {f"--on {on.name} --chips {on.num_chips}": system.on(on) for on in larger_chips(system.cluster)}
        return self._with("cluster", others)


def _largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest whole number up to a limit that holds; 0 where 1 does not."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


# bytes of host memory that a step of Adam on the host moves for a parameter: gradient, master weight and two moments
# read, the last three written, 4 bytes each (counted)
CPU_ADAM_BYTES = 28.0
SHORTEST_SEQ = 512
LORA_RANK = 16
_MULTIPLES = [half * power for power in (2**e for e in range(14)) for half in (2, 3)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainChanges:
    """The changes that are tried.

    Args:
        plan: in which nothing fits.
        fixed, schedules, recompute, pue: as they were asked for, see `rackline.search.train.train_plan`.
    """

    plan: TrainPlan
    fixed: Mapping[str, int]
    schedules: Sequence[str] = ()
    recompute: Sequence[str] = ()
    pue: float = 1.0

    def misfit(self) -> Misfit | None:
        """Why nothing fits and what would; None where something does."""
        plan, nearest = self.plan, self.plan.nearest
        if nearest is None:
            return None
        kinds = (self._layout, self._recompute, self._optimizer, self._precision, self._offload, self._context)
        kinds += (self._adapters, self._chips, self._cluster)
        return Misfit(
            memory=_memory_of(plan.system, Runs.of([nearest]), 0),
            tried=tuple(change for kind in kinds for change in kind()),
            unit="trained",
            priced=plan.system.cluster.usd_per_chip_hour is not None,
        )

    def _practice(self, system: TrainingSystem) -> Practice | None:
        return None if self.plan.practice is None else practice_of(system)

    def _tried(
        self, kind: ChangeKind, setting: str, system: TrainingSystem, gives_up: str = "", **how: object
    ) -> Change:
        """The fastest run of another system."""
        asked = {"fixed": self.fixed, "schedules": self.schedules, "recompute": self.recompute, **how}
        try:
            plan = train_plan(
                system,
                tokens=self.plan.tokens,
                pue=self.pue,
                practice=self._practice(system),
                most=1,
                **asked,  # type: ignore[arg-type]
            )
        except LayoutError:  # its batch or layout is impossible there
            return change_of(kind, setting, system.cluster, gives_up, None, None)
        if not plan.best:
            held = None if plan.nearest is None else _memory_of(system, Runs.of([plan.nearest]), 0)
            return change_of(kind, setting, system.cluster, gives_up, held, None)
        best = plan.best[0]
        memory = ChipMemory.of_training(TrainLayout.label(best.layout), best.memory, system.cluster.chip.hbm_bytes)
        found = change_of(kind, setting, system.cluster, gives_up, memory, _cost(system, best.step_s, memory.layout))
        return replace(found, days=best.days, usd=best.usd)

    def _first(
        self, kind: ChangeKind, settings: Iterable[tuple[str, TrainingSystem]], gives_up: str = ""
    ) -> list[Change]:
        """The first of some systems, those that cost least first, in which it fits; else the last."""
        return until_it_fits(self._tried(kind, setting, system, gives_up) for setting, system in settings)

    def _layout(self) -> list[Change]:
        return [self._tried("layout", "without --layout", self.plan.system, fixed={})] if self.fixed else []

    def _recompute(self) -> list[Change]:
        all_searched = not self.recompute or "full" in self.recompute
        return [] if all_searched else [self._tried("recompute", "without --recompute", self.plan.system, recompute=())]

    def _optimizer(self) -> list[Change]:
        """Moments of Adam in fewer bytes: other numbers, the same method."""
        system = self.plan.system
        narrower = ((f"--optimizer {name}", OPTIMIZERS[name]) for name in ("adam-bf16", "adam-8bit"))
        return self._first(
            "optimizer",
            (
                (text, replace(system, precision=replace(system.precision, moment_bytes=size)))
                for text, size in narrower
                if size < system.precision.moment_bytes
            ),
            "precision of the moments",
        )

    def _precision(self) -> list[Change]:
        system = self.plan.system
        types = train_precision("fp8", system.cluster.chip, stack=system.stack)
        if system.precision.quantised or system.precision.frozen_bytes is not None or not types.quantised:
            return []
        types = replace(types, moment_bytes=system.precision.moment_bytes)
        return [self._tried("precision", "--precision fp8", replace(system, precision=types), "precision")]

    def _offload(self) -> list[Change]:
        """Optimiser states in the memory of the host, whose processors take the optimiser's step.

        Once a step gradients go to the host and new weights come back.

        Assumes: nothing of it is hidden behind the passes; the memory bandwidth of a host is shared by its chips.

        Sources: Ren et al. 2021 (ZeRO-Offload, arXiv:2101.06840).
        """
        system = self.plan.system
        on, tier = system.cluster, memory_tier(HOST_MEMORY)
        chips = min(on.host_chips, on.num_chips)
        room = tier.capacity_bytes / chips
        runs = train_space(
            system,
            fixed=self.fixed,
            schedules=self.schedules or system.stack.parallelism.schedules,
            recompute=self.recompute or system.stack.kinds_of_recompute(),
        )

        def beside(memory: TrainMemory) -> Array:
            return np.where(memory.optimizer <= room, -(1.0 + MARGIN) * memory.optimizer, 0.0)

        found = evaluate_runs(system, runs, beside=beside)
        setting = "optimiser states on the host"
        best = int(np.argmin(found.step_s if np.any(np.isfinite(found.step_s)) else found.total_bytes))
        held = train_memory(MicroBatch(system=system, runs=runs.take(np.array([best]))))
        memory, states = _memory_of(system, runs, best), float(held.optimizer[0])
        if states > room:
            reason = f"a chip's share of its host's memory is {format_bytes(room)}"
            return [change_of("offload", setting, on, "", memory, None, reason)]
        freed = {"optimiser states": 0.0, "overhead": memory.parts["overhead"] - MARGIN * states}
        memory = replace(memory, parts={**memory.parts, **freed})
        if not np.isfinite(found.step_s[best]):
            return [change_of("offload", setting, on, "", memory, None)]
        parameters = states / system.precision.optimizer_bytes
        # gradients out, weights in, and the optimiser's own traffic on a share of the host's memory
        link_s = (float(held.gradients[0]) + system.precision.weight_bytes * parameters) / host_bytes_per_s(on.chip)
        added_s = link_s + CPU_ADAM_BYTES * parameters / (tier.bytes_per_s / chips)
        alone, practice = runs.take(np.array([best])), self._practice(system)
        (one,) = candidates(system, alone, self.plan.tokens, self.plan.reliability, self.pue, practice)
        slower = (one.step_s + added_s) / one.step_s
        cost = _cost(system, one.step_s * slower, memory.layout)
        change = change_of("offload", setting, on, "", memory, cost)
        return [replace(change, days=one.days and slower * one.days, usd=one.usd and slower * one.usd)]

    def _context(self) -> list[Change]:
        """Shorter sequences, by halves, in batches of as many tokens."""
        system = self.plan.system

        def halves() -> Iterator[tuple[str, TrainingSystem]]:
            seq_len = system.seq_len
            while seq_len // 2 >= SHORTEST_SEQ:
                seq_len //= 2
                sequences = whole_batch(system.global_batch_tokens, seq_len, system.cluster.num_chips)
                yield f"--seq {seq_len}", replace(system, seq_len=seq_len, global_batch_sequences=sequences)

        shortest = self._first("context", list(halves())[-1:], "longer contexts")
        return self._first("context", halves(), "longer contexts") if shortest and shortest[0].fits else shortest

    def _adapters(self) -> list[Change]:
        system = self.plan.system
        if system.lora_rank and system.precision.frozen_bytes is not None:
            return []
        lora = replace(system, lora_rank=system.lora_rank or LORA_RANK)
        setting, tries = f"--lora {LORA_RANK}", [] if system.lora_rank else [(f"--lora {LORA_RANK}", lora)]
        if not system.precision.quantised:
            narrow = replace(lora, precision=with_frozen(system.precision, "nf4"))
            if system.lora_rank:
                return self._first("precision", [("--frozen nf4", narrow)], "precision of the frozen weights")
            tries.append((f"{setting} --frozen nf4", narrow))
        return self._first("adapters", tries, "training of all weights")

    def _chips(self) -> list[Change]:
        system = self.plan.system
        counts = more_chips(system.cluster, _MULTIPLES)
        more = ((f"--chips {count}", self._on(system.cluster.with_num_chips(count))) for count in counts)
        return self._first("chips", more)

    def _cluster(self) -> list[Change]:
        """The same number of chips with more memory each, of the same vendor, those of the least rent first."""
        others = larger_chips(self.plan.system.cluster)
        return self._first("cluster", ((f"--on {one.name} --chips {one.num_chips}", self._on(one)) for one in others))

    def _on(self, other: Cluster) -> TrainingSystem:
        """The same job on other chips, with its batch as they can share it."""
        system = self.plan.system
        tokens = self.plan.asked_batch_tokens or system.global_batch_tokens
        moved = system.on(other, whole_batch(tokens, system.seq_len, other.num_chips))
        if other.chip.name == system.cluster.chip.name:
            return moved
        types = train_precision(system.precision.label, other.chip, stack=system.stack)
        types = replace(types, moment_bytes=system.precision.moment_bytes)
        if system.precision.frozen_bytes is not None:
            types = with_frozen(types, "nf4")
        return replace(moved, calibration=calibration(system.stack.kernels.calibration, other.chip), precision=types)


def _memory_of(system: TrainingSystem, runs: Runs, index: int) -> ChipMemory:
    """Memory of the fullest chip of a run."""
    held = train_memory(MicroBatch(system=system, runs=runs.take(np.array([index])))).at(0)
    return ChipMemory.of_training(TrainLayout.label(runs.layout(index)), held, system.cluster.chip.hbm_bytes)


def _cost(system: TrainingSystem, step_s: float, layout: str) -> Cost:
    usd_per_s = price_per_chip_s(system.cluster) * system.cluster.num_chips
    return Cost(layout=layout, step_s=step_s, usd_per_mtok=usd_per_s * step_s / system.global_batch_tokens * 1e6)

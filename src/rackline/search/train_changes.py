"""The changes with which a training run fits that does not fit on its chips, tried in the order of what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from rackline.errors import LayoutError
from rackline.hardware import Cluster, host_bytes_per_s, memory_tier
from rackline.passes import calibration
from rackline.passes.features import Array
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
from rackline.search.train import TrainPlan, candidates, train_plan
from rackline.search.train_space import evaluate_runs, train_space, whole_batch
from rackline.training.memory import CHEAPEST_FIRST, MARGIN, TrainMemory, train_memory
from rackline.training.practice import Practice, practice_of
from rackline.training.runs import Runs, TrainLayout
from rackline.training.stack import OPTIMIZERS, train_precision, with_frozen
from rackline.training.system import MicroBatch, TrainingSystem
from rackline.units import format_bytes

CPU_ADAM_BYTES = 28.0
"""Bytes of host memory that a step of Adam on the host moves for a parameter: gradient, master weight and two moments
read, the last three written, 4 bytes each (counted)."""
SHORTEST_SEQ = 512
LORA_RANK = 16
_MULTIPLES = [half * power for power in (2**e for e in range(14)) for half in (2, 3)]


Setting: TypeAlias = tuple[str, TrainingSystem]


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

    def _planned(self, system: TrainingSystem, **how: object) -> TrainPlan | None:
        """The fastest run of another system; None where its batch or layout is impossible there."""
        asked = {"fixed": self.fixed, "schedules": self.schedules, "recompute": self.recompute, **how}
        try:
            return train_plan(
                system,
                tokens=self.plan.tokens,
                pue=self.pue,
                practice=self._practice(system),
                most=1,
                **asked,  # type: ignore[arg-type]
            )
        except LayoutError:
            return None

    def _practice(self, system: TrainingSystem) -> Practice | None:
        return None if self.plan.practice is None else practice_of(system)

    def _tried(
        self, kind: ChangeKind, setting: str, system: TrainingSystem, gives_up: str = "", **how: object
    ) -> Change:
        plan = self._planned(system, **how)
        if plan is None:
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
        if not self.recompute or CHEAPEST_FIRST[-1] in self.recompute:
            return []  # all were searched
        return [self._tried("recompute", "without --recompute", self.plan.system, recompute=())]

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
        if system.precision.quantised or system.precision.frozen_bytes is not None:
            return []
        types = train_precision("fp8", system.cluster.chip, stack=system.stack)
        if not types.quantised:
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
            schedules=self.schedules or system.stack.schedules,
            recompute=self.recompute or [name for name in CHEAPEST_FIRST if name != "selective"],
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
        one = candidates(
            system,
            runs.take(np.array([best])),
            self.plan.tokens,
            self.plan.reliability,
            self.pue,
            self._practice(system),
        )[0]
        slower = (one.step_s + added_s) / one.step_s
        cost = _cost(system, one.step_s * slower, memory.layout)
        change = change_of("offload", setting, on, "", memory, cost)
        return [
            replace(
                change,
                days=None if one.days is None else slower * one.days,
                usd=None if one.usd is None else slower * one.usd,
            )
        ]

    def _context(self) -> list[Change]:
        """Shorter sequences, by halves, in batches of as many tokens."""
        system = self.plan.system

        def halves() -> Iterator[tuple[str, TrainingSystem]]:
            seq_len = system.seq_len
            while seq_len // 2 >= SHORTEST_SEQ:
                seq_len //= 2
                sequences = whole_batch(system.global_batch_tokens, seq_len, system.cluster.num_chips)
                yield f"--seq {seq_len}", replace(system, seq_len=seq_len, global_batch_sequences=sequences)

        last = list(halves())[-1:]
        shortest = self._first("context", last, "longer contexts")
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
        counts = ((count, system.cluster.with_num_chips(count)) for count in more_chips(system.cluster, _MULTIPLES))
        return self._first("chips", ((f"--chips {count}", self._on(on)) for count, on in counts))

    def _cluster(self) -> list[Change]:
        """As many chips with more memory each, of the same vendor, those of the least rent first."""
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
        return replace(moved, calibration=calibration(system.stack.kernels, other.chip), precision=types)


def _memory_of(system: TrainingSystem, runs: Runs, index: int) -> ChipMemory:
    """Of the fullest chip of a run."""
    held = train_memory(MicroBatch(system=system, runs=runs.take(np.array([index])))).at(0)
    return ChipMemory.of_training(TrainLayout.label(runs.layout(index)), held, system.cluster.chip.hbm_bytes)


def _cost(system: TrainingSystem, step_s: float, layout: str) -> Cost:
    usd_per_s = price_per_chip_s(system.cluster)[0] * system.cluster.num_chips
    return Cost(layout=layout, step_s=step_s, usd_per_mtok=usd_per_s * step_s / system.global_batch_tokens * 1e6)

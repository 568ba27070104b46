"""What a plan chooses from, layouts × precisions × modes × batches, and its pass tables: some layouts at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rackline.arch import AggregateModel, AnyModel
from rackline.errors import require
from rackline.hardware import paid_share
from rackline.parallel import Layout, LayoutGrid, Precision, enumerate_layouts, expert_law, memory_use, precision
from rackline.parallel.deployment import ExpertLoads
from rackline.parallel.work import most_sequences
from rackline.passes import Batch, ExpertLoad
from rackline.passes.features import Array, as_array
from rackline.search.candidate import price_per_chip_s
from rackline.search.launch_rules import Asked, LaunchRules, Role, rules_of
from rackline.serving.stack import Stack
from rackline.serving.steady import Engine
from rackline.serving.workload import Mode, Workload, parse_mode
from rackline.simulation.policies import alignments
from rackline.system import System

LAYOUTS_AT_ONCE = 2048  # bounds the memory of a search over thousands of chips
# Sequences per attention-dp rank: every power of two, and its 3/2; the best is refined to a whole batch afterwards.
BATCH_GRID = np.unique(np.array([1, 2, 3] + [2**e * q // 2 for e in range(2, 13) for q in (2, 3)], dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What a plan may choose from; None for all that there is.

    Args:
        modes: schedulers; see `default_modes`.
        layouts: see `rackline.parallel.enumerate_layouts`.
        batches: sequences per rank, shape (batches,); see `BATCH_GRID`.
        rules: what the engine launches; those of the calibration's stack by default.
        any_layout: also layouts that the engine does not launch.
    """

    modes: Sequence[Mode] | None = None
    layouts: Sequence[Layout] | None = None
    batches: Array | None = None
    rules: LaunchRules | None = None
    any_layout: bool = False


CHUNKS = (256, 512, 1024, 2048, 4096, 8192, 16384)  # tokens of a pass
ALIGNED_PASSES = (16, 48)  # for which attention-dp ranks hold prompts, at most where that depends


def default_modes(model: AnyModel, stack: Stack) -> list[Mode]:
    """Schedulers worth looking at: chunked prefill with seven budgets, prefill first; each also overlapped.

    For a mixture also those that the stack offers to align the prompts of attention-dp ranks.
    """
    plain = [Mode(admission="chunked", max_batched_tokens=budget) for budget in CHUNKS]
    plain.append(Mode(admission="prefill_first", max_batched_tokens=16384))
    if not model.is_moe or isinstance(model, AggregateModel):
        return plain
    return [*plain, *(replace(mode, two_batch_overlap=True) for mode in plain), *aligned_modes(stack)]


def aligned_modes(stack: Stack) -> list[Mode]:
    """Schedulers that hold prompts until those of several attention-dp ranks run together."""
    known = alignments()
    return [
        replace(parse_mode(known[name][0]), alignment=known[name][1].of(passes))
        for name in stack.scheduler.alignments
        for passes in ALIGNED_PASSES
    ]


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

    @classmethod
    def of(cls, system: System, workload: Workload, among: SearchSpace, *, threads: int = 2) -> Space:
        """The space of a search; layouts that the engine does not launch are in it.

        Raises:
            InputError: the space is empty.
        """
        model = system.model
        layouts = list(among.layouts) if among.layouts is not None else every_layout(system)
        require(layouts, what="layouts", given=0, allowed=f"at least one layout of {model.name}")
        batches = np.asarray(BATCH_GRID if among.batches is None else among.batches, dtype=np.float64)
        return cls(
            system=system,
            workload=workload,
            grid=LayoutGrid.of(layouts),
            modes=list(among.modes) if among.modes else default_modes(model, system.stack),
            batches=batches[batches <= max(most_sequences(model), batches[0])],  # no more than have their adapters
            threads=threads,
            rules=None if among.any_layout else among.rules or rules_of(system.calibration),
        )

    def one(self, layout: Layout, precision: Precision, batches: Array) -> Part:
        """The space of one layout in one precision at other batches, shape (batches,); any layout starts."""
        system = replace(self.system, precisions=(precision,))
        return next(
            replace(self, system=system, grid=LayoutGrid.of([layout]), batches=batches, threads=1, rules=None).parts()
        )

    def in_precision(self, precision: Precision) -> Space:
        """This space in one precision."""
        return replace(self, system=replace(self.system, precisions=(precision,)))

    @property
    def combinations(self) -> int:
        """Distinct layout × precision × mode combinations; overlap and alignment only where there are several ranks."""
        return sum(int(np.sum(self.suits(mode))) for mode in self.modes) * len(self.system.precisions)

    def suits(self, mode: Mode) -> Array:
        """Whether a mode is one of each layout: attention-dp ranks exchange tokens or wait for each other, (layouts,).

        Ranks wait for each other where no stages lie between them, with prompts that one pass holds: an engine would
        hold each part of a longer one anew.
        """
        several = as_array(self.grid.attention_dp) > 1
        if mode.alignment is not None:
            whole = self.workload.mean_pieces(float(mode.max_batched_tokens)) <= 1.0
            return several & (as_array(self.grid.pp) == 1) & whole
        return several if mode.two_batch_overlap else np.ones(len(self.grid), dtype=bool)

    def asked(
        self, precision: Precision, mode: Mode, role: Role = "both", cp: int = 1, layout: Layout | None = None
    ) -> Asked:
        """What the engine is asked to launch: all layouts, or one.

        Args:
            cp: ranks that share a context [count].
        """
        return Asked(
            model=self.system.model,
            cluster=self.system.cluster,
            sharding=layout or self.grid,
            precision=precision,
            mode=mode,
            role=role,
            cp=cp,
        )

    def launches(self, precision: Precision, mode: Mode, role: Role = "both", cp: int = 1) -> Array:
        """Whether the engine supports each layout, shape (layouts,); true for all without launch rules; see `asked`."""
        if self.rules is None:
            return np.ones(len(self.grid), dtype=bool)
        return self.rules.launches(self.asked(precision, mode, role, cp))

    def starting(self, mode: Mode) -> Array:
        """Which layouts the engine launches under a scheduler in any of the precisions, shape (layouts,)."""
        return np.logical_or.reduce([self.launches(one, mode) for one in self.system.precisions])

    def in_pools(self, *, every: bool = False) -> Array:
        """Layouts that start in one of the pools, or in both under every scheduler, shape (layouts,)."""
        found = np.full(len(self.grid), every)
        for one in self.system.precisions:
            for overlap in {mode.two_batch_overlap for mode in self.modes}:
                mode = replace(self.modes[0], two_batch_overlap=overlap)
                first, then = (self.launches(one, mode, role) for role in ("prefill", "decode"))
                found = found & first & then if every else found | first | then
        return found

    def launchable(self, *, pools: bool) -> Space:
        """The space without layouts that the engine cannot launch in any combination; unchanged if it launches none.

        Args:
            pools: whether layouts that only a prefill or a decode pool may have are kept.
        """
        if self.rules is None:
            return self
        starts = [self.starting(mode) for mode in self.modes]
        modes = [mode for mode, each in zip(self.modes, starts, strict=True) if each.any()]
        kept = np.logical_or.reduce([*starts, self.in_pools()] if pools else starts)
        if not modes or not kept.any():
            return self
        return replace(self, modes=modes, grid=self.grid.take(np.flatnonzero(kept)))

    @property
    def starts_nothing(self) -> str:
        """Why the engine launches nothing in the space, in one line; empty if it launches something."""
        if self.rules is None or any(np.any(self.starting(mode)) for mode in self.modes):
            return ""
        asked = self.asked(self.system.precisions[0], self.modes[0])
        says = [rule.says for _, rule, breaks in self.rules.broken(asked) if breaks.any()]
        return f"{self.rules.engine} {self.rules.version} launches none of these: {'; '.join(says)}"

    @property
    def usd_per_chip_s(self) -> Array:
        """Cost of a chip in use, including unused chips that are paid for, shape (layouts,) [USD/s]."""
        return price_per_chip_s(self.system.cluster) * paid_share(self.system.cluster, self.grid.chips_per_replica)

    def free_bytes(self, precision: Precision, batched_tokens: float | None, cp: int = 1) -> Array:
        """Free bytes on the fullest chip at every (layout, batch); linear in the sequences.

        Args:
            cp: ranks that share each context [count].
        """
        pp = as_array(self.grid.pp)
        empty, one = (
            as_array(
                memory_use(
                    self.system.model,
                    self.grid,
                    precision,
                    self.system.cluster.chip,
                    self.system.server(batched_tokens),
                    sequences_per_rank=count * pp,
                    context_len=self.workload.final_context,
                ).free
            )
            for count in (0.0, 1.0)
        )
        return empty[:, None] + (one - empty)[:, None] * (self.batches / cp)[None, :]

    def holds(self, precision: Precision, batched_tokens: float | None, context_len: float) -> Array:
        """Whether a rank of each layout has room for one sequence of a context, (layouts,)."""
        free = memory_use(
            self.system.model,
            self.grid,
            precision,
            self.system.cluster.chip,
            self.system.server(batched_tokens),
            sequences_per_rank=1.0,
            context_len=context_len,
        ).free
        return np.broadcast_to(as_array(free) >= 0.0, (len(self.grid),))

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
        return self.holds(precision, batched_tokens, longest / cp)

    def engine(self, precision: Precision, law: ExpertLoad | ExpertLoads | None) -> Engine:
        """Pass tables of all layouts in one precision.

        Args:
            law: load of the busiest expert-parallel rank of each layout.
        """
        return self.system.engines(self.system.table(self.grid, precision, law), self.grid)

    def parts(self) -> Iterator[Part]:
        """Parts of the layouts, each in every precision, so that memory holds the tables of one part at a time."""
        law = expert_law(self.system.model, self.grid, self.system.routing)
        for start in range(0, len(self.grid), LAYOUTS_AT_ONCE):
            some = slice(start, start + LAYOUTS_AT_ONCE)
            space = replace(self, grid=self.grid.take(some))
            here = law.take(some) if isinstance(law, ExpertLoads) else law
            for label, types in enumerate(self.system.precisions):
                yield Part(space=space, start=start, label=label, precision=types, engine=space.engine(types, here))


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
    _known: dict[object, Array] = field(default_factory=dict[object, Array], init=False, repr=False, compare=False)

    def take(self, rows: Array) -> Part:
        """A selection of the layouts by index, shape (layouts,); what is known of them is kept."""
        space = replace(self.space, grid=self.space.grid.take(rows))
        found = replace(self, space=space, engine=self.engine.take(rows))
        found._known.update({of: values[rows] for of, values in self._known.items()})
        return found

    def once(self, of: object, compute: Callable[[], Array]) -> Array:
        """What is computed once for every layout and batch, shape (layouts, batches)."""
        if of not in self._known:
            self._known[of] = compute()
        return self._known[of]

    def decode_s(self, two_batch_overlap: bool) -> Array:
        """Decode steps of every layout and batch, shape (layouts, batches) [s]."""
        space = self.space
        return self.once(
            ("decode", two_batch_overlap),
            lambda: self.engine.decode_s(
                Batch(decode_sequences=space.batches[None, :], context_len=space.workload.mean_context),
                self.engine.time_table(two_batch_overlap),
                two_batch_overlap=two_batch_overlap,
                threads=space.threads,
            ),
        )

    def free_bytes(self, batched_tokens: float, cp: int = 1) -> Array:
        """Free bytes on the fullest chip at every layout and batch; see `Space.free_bytes`."""
        return self.once(
            ("free", batched_tokens, cp), lambda: self.space.free_bytes(self.precision, batched_tokens, cp)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPool:
    """The prefill pool of disaggregated serving.

    Args:
        system: that prefills where it is another one; that of the decode pool by default.
        layouts: that it may have; all by default.
    """

    system: System | None = None
    layouts: Sequence[Layout] | None = None

    def space(self, decode: Space) -> Space:
        """The space of the pool: that of the decode pool where it has no chips or layouts of its own."""
        if self.system is None and self.layouts is None and len(decode.grid) > 1:
            return decode
        system = self.system or decode.system
        layouts = list(self.layouts) if self.layouts else every_layout(system)
        types = tuple(precision(each.label, system.model, system.cluster.chip) for each in decode.system.precisions)
        return replace(decode, system=replace(system, precisions=types), grid=LayoutGrid.of(layouts))


ANY_POOL = PrefillPool()


def every_layout(system: System) -> list[Layout]:
    """All layouts of a replica on the chips of a system."""
    return enumerate_layouts(system.model, system.cluster.num_chips)

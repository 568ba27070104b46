"""Served cases, prepared for repeated prediction under different numbers of their stack, or of their chips' power.

Kernel times do not depend on the parameters of a stack except for the popularity of experts, so each is computed once.
The energy of a step is linear in the numbers of `rackline.hardware.ChipPower`, so a case is prepared as the amount that
each number applies to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from rackline.errors import RacklineError
from rackline.fitting.solver import SOFT_L1_SCALE, Parameter, Values, fit
from rackline.hardware import Chip, ChipPower
from rackline.parallel import Deployment
from rackline.passes import Batch, TimeTable
from rackline.passes.features import Array, as_array
from rackline.serving import Engine, Workload
from rackline.serving.closed_loop import closed_loops, engine_of
from rackline.serving.fleet import mean_step, step_joules
from rackline.serving.stack import IDEAL, Stack
from rackline.validation.cases import Case, Unsupported, request_s, rounds_of, source_of, workload_of
from rackline.validation.resolve import Resolver

COMMON = {"rank_skew_s": 1e-6, "prefill_slowdown": 1.0, "eager_s_per_layer": 1e-3}
"""Parameters that all stacks share and that vary smoothly → their scale."""


FIRST_TOKEN = ("first_token_s", "first_token_equal_s")
"""Time to first token outside of the passes, for varying and for equal request lengths."""
BURST = "burst_share"
POOLS = ("handover_s", "pool_burst_share")
"""Parameters of pools of prefill and decode workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingNumbers:
    """All fitted serving parameters; see `rackline.serving.stack.Stack` for their meaning.

    Args:
        burst_share: burst share of each fitted admission, "chunked" or "prefill_first"; requests of varied lengths have
            that of "chunked" under all of them.
    """

    rank_skew_s: float
    prefill_slowdown: float
    eager_s_per_layer: float
    first_token_s: float
    first_token_equal_s: float
    burst_share: Mapping[str, float]
    handover_s: float = 0.0
    pool_burst_share: float = 0.0

    def burst_of(self, admission: str) -> float:
        """The burst share of an admission; the median of the others for one that was not fitted."""
        return self.burst_share.get(admission, float(np.median(list(self.burst_share.values()) or [0.0])))

    def stack(self, scheduler: Stack) -> Stack:
        """A stack with these parameters and the scheduler of `scheduler`."""
        return scheduler.with_values(
            {
                "kernels.rank_skew_s": self.rank_skew_s,
                "graphs.prefill_slowdown": self.prefill_slowdown,
                "graphs.eager_s_per_layer": self.eager_s_per_layer,
                "arrivals.first_token_s": self.first_token_s,
                "arrivals.first_token_equal_s": self.first_token_equal_s,
                "arrivals.burst_share": self.burst_of("chunked"),
                "arrivals.burst_equal_share": self.burst_of(scheduler.scheduler.admission),
                "arrivals.handover_s": self.handover_s,
                "arrivals.pool_burst_share": self.pool_burst_share,
            }
        )

    def get(self, name: str) -> float:
        """A parameter by its name in `flat`."""
        own, _, admission = name.partition(".")
        return self.burst_of(admission) if admission else float(getattr(self, own))

    def changed(self, values: Mapping[str, float]) -> ServingNumbers:
        """These parameters with some replaced, by their flat names."""
        burst = {name.partition(".")[2]: value for name, value in values.items() if "." in name}
        changes: dict[str, Any] = {name: value for name, value in values.items() if "." not in name}
        return replace(self, **changes, burst_share={**self.burst_share, **burst})

    @property
    def flat(self) -> dict[str, float]:
        """The parameters by their flat names: burst_share.chunked and so on."""
        found = {name: float(getattr(self, name)) for name in (*COMMON, *FIRST_TOKEN, *POOLS)}
        return {**found, **{f"{BURST}.{name}": share for name, share in self.burst_share.items()}}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeptEngine(Engine):
    """An engine that caches the kernel times of batches, which do not depend on stack parameters."""

    kept_tables: dict[bool, TimeTable] = field(default_factory=dict[bool, TimeTable])
    kept_seconds: dict[tuple[object, ...], Array] = field(default_factory=dict[tuple[object, ...], Array])

    def time_table(self, two_batch_overlap: bool) -> TimeTable:
        """The table of `Engine`, built once."""
        if two_batch_overlap not in self.kept_tables:
            self.kept_tables[two_batch_overlap] = Engine.time_table(self, two_batch_overlap)
        return self.kept_tables[two_batch_overlap]

    def seconds(self, batch: Batch, times: TimeTable, *, two_batch_overlap: bool, threads: int = 1) -> Array:
        """The time of `Engine`, computed once per batch [s]."""
        parts = (
            batch.decode_sequences,
            batch.decode_tokens,
            batch.context_len,
            batch.prefill_sequences,
            batch.chunk_tokens,
            batch.prefix_tokens,
            np.nan if batch.group_tokens is None else batch.group_tokens,
        )
        key = (two_batch_overlap, *((array.shape, array.tobytes()) for array in map(as_array, parts)))
        if key not in self.kept_seconds:
            self.kept_seconds[key] = Engine.seconds(
                replace(self, stack=IDEAL), batch, times, two_batch_overlap=two_batch_overlap, threads=threads
            )
        return self.kept_seconds[key] + self.skew_s() * self.stage_imbalance


Change = Callable[[Deployment], Deployment]


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predictions of all cases, shape (cases,): tpot_s, ttft_s [s], and whether memory bounds the batch."""

    tpot_s: Array
    ttft_s: Array
    memory_bound: Array


@dataclass(slots=True)
class FitCases:
    """Served cases, prepared for repeated prediction under different parameters.

    Args:
        cases: cases that can be predicted.
        unsupported: cases that cannot.
        schedulers: stack of each case, with the defaults of its version and chip, shape (cases,).
        tpot_s, ttft_s: measured values, shape (cases,), NaN where a case has none [s].
    """

    cases: tuple[Case, ...]
    unsupported: tuple[Unsupported, ...]
    schedulers: tuple[Stack, ...]
    tpot_s: Array
    ttft_s: Array
    _resolver: Resolver
    _change: Change
    _workloads: list[Workload]
    _engines: dict[Deployment, tuple[Deployment, KeptEngine]] = field(
        default_factory=dict[Deployment, tuple[Deployment, KeptEngine]]
    )
    _deployments: dict[int, Deployment] = field(default_factory=dict[int, Deployment])
    _groups: dict[tuple[Engine, Stack, bool, float], list[int]] = field(
        default_factory=dict[tuple[Engine, Stack, bool, float], list[int]]
    )

    def predict(self, numbers: ServingNumbers, only: Iterable[int] | None = None) -> Predicted:
        """Predict under these numbers; the cases of an engine at once, so that kernel times are those of any subset.

        Args:
            only: indices of the cases that are needed; the others may be NaN.
        """
        shape = len(self.cases)
        tpot, ttft, bound = np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape, dtype=bool)
        wanted = set(range(shape) if only is None else map(int, only))
        for (_, scheduler, _, _), members in self._grouped().items():
            if wanted.isdisjoint(members):
                continue
            around = numbers.stack(scheduler)
            deployment, engine = self._engine(members[0])
            loops = closed_loops(
                deployment,
                [self._workloads[index] for index in members],
                around.scheduler.mode(),
                np.array([self.cases[index].number("concurrency") for index in members]),
                engine=replace(engine, stack=around),
                rounds=np.array([rounds_of(self.cases[index]) for index in members]),
            )
            for index, loop in zip(members, loops, strict=True):
                if isinstance(loop, RacklineError):
                    raise loop
                tpot[index], ttft[index], bound[index] = loop.tpot_s, loop.ttft_s, loop.bound == "memory"
        return Predicted(tpot, ttft, bound)

    def _grouped(self) -> dict[tuple[Engine, Stack, bool, float], list[int]]:
        """Cases that one call predicts: of one engine, one scheduler, one way to draw lengths."""
        if not self._groups:
            for index, (kept, work) in enumerate(zip(self.schedulers, self._workloads, strict=True)):
                key = (self._engine(index)[1], kept, work.equal_lengths, work.output_spread)
                self._groups.setdefault(key, []).append(index)
        return self._groups

    def values(self, predicted: Predicted, index: int) -> dict[str, float]:
        """The values of one case that are scored, in SI units."""
        tpot, ttft = float(predicted.tpot_s[index]), float(predicted.ttft_s[index])
        case, output_len = self.cases[index], self._workloads[index].output_len
        found = {"tpot_s": tpot, "ttft_s": ttft, "request_s": request_s(case, tpot, ttft)}
        if "output_tokens_per_s" in case.measured:  # by Little's law
            found["output_tokens_per_s"] = case.number("concurrency") * output_len / (ttft + (output_len - 1.0) * tpot)
        return found

    def concerned(self, name: str) -> Array:
        """Mask of the cases whose time to first token depends on a parameter, by its flat name, shape (cases,)."""
        if name in FIRST_TOKEN:
            equal = name == "first_token_equal_s"
            return np.array([workload.equal_lengths == equal for workload in self._workloads], dtype=bool)
        admission = name.partition(".")[2]
        both = zip(self.schedulers, self._workloads, strict=True)
        found = ((kept.scheduler.admission if work.equal_lengths else "chunked") == admission for kept, work in both)
        return np.array(list(found), dtype=bool)

    def _engine(self, index: int) -> tuple[Deployment, KeptEngine]:
        if index not in self._deployments:
            found = self._resolver.deployments(self.cases[index], stack=self.schedulers[index])
            self._deployments[index] = found[0]
        deployment = self._deployments[index]
        if deployment not in self._engines:
            changed = self._change(deployment)
            plain = engine_of(changed)
            kept = KeptEngine(
                table=plain.table,
                attention_dp=plain.attention_dp,
                micro_batches=plain.micro_batches,
                stage_imbalance=plain.stage_imbalance,
                num_layers=plain.num_layers,
            )
            self._engines[deployment] = (changed, kept)
        return self._engines[deployment]


def prepare(
    cases: Iterable[Case],
    *,
    calibration_name: str = "auto",
    change: Change = lambda found: found,
    scheduler: Callable[[Stack], Stack] = lambda found: found,
) -> FitCases:
    """Resolve the served cases that state a time per output token.

    Args:
        calibration_name: as in `Resolver`.
        change: change of each deployment before it is timed.
        scheduler: change of each stack.
    """
    resolver = Resolver(calibration_name=calibration_name)
    good: list[Case] = []
    bad: list[Unsupported] = []
    workloads: list[Workload] = []
    schedulers: list[Stack] = []
    for case in cases:
        if case.kind != "serve" or "tpot_s" not in case.measured:
            continue
        if source_of(case).tpot == "median":
            cause = "its source states the median inter-token time, but the fit needs the mean"
            bad.append(Unsupported.of(case, cause))
            continue
        try:
            around = resolver.stack(case)
            resolver.deployments(case)
            workload = workload_of(case)
        except RacklineError as error:
            bad.append(Unsupported.of(case, str(error), bad_input=True))
            continue
        schedulers.append(scheduler(around))
        good.append(case)
        workloads.append(workload)
    return FitCases(
        cases=tuple(good),
        unsupported=tuple(bad),
        schedulers=tuple(schedulers),
        tpot_s=np.array([case.measured["tpot_s"] for case in good], dtype=float),
        ttft_s=np.array([case.measured.get("ttft_s", math.nan) for case in good], dtype=float),
        _resolver=Resolver(calibration_name=calibration_name),
        _change=change,
        _workloads=workloads,
    )


def shipped_numbers(cases: FitCases, otherwise: Case | None = None) -> ServingNumbers:
    """The parameters of the catalogue's stacks; those of the time to first token are the same for all of them.

    Args:
        otherwise: a case whose stack has them, where no case can be fitted.
    """
    first = next(iter(cases.schedulers), IDEAL)
    if not cases.schedulers and otherwise is not None:
        first = Resolver().stack(otherwise)
    waits = first.arrivals
    burst_share = {"chunked": waits.burst_share}
    for around in cases.schedulers or (first,):
        equal_share = around.arrivals.burst_equal_share
        burst_share[around.scheduler.admission] = around.arrivals.burst_share if equal_share is None else equal_share
    return ServingNumbers(
        rank_skew_s=first.kernels.rank_skew_s,
        prefill_slowdown=first.graphs.prefill_slowdown,
        eager_s_per_layer=first.graphs.eager_s_per_layer,
        first_token_s=waits.first_token_s,
        first_token_equal_s=waits.first_token_s if waits.first_token_equal_s is None else waits.first_token_equal_s,
        burst_share=burst_share,
        handover_s=waits.handover_s,
        pool_burst_share=waits.pool_burst_share,
    )


MEASURED_KEYS = ("power_w_per_chip", "joules_per_output_token")
AT_MEASURED = "_at_measured_rate"
"""End of a metric whose step times are measured, so that its errors are those of the power alone."""
FITTED = ("busy_w", "converting_w", "joules_per_flop", "joules_per_hbm_byte")
"""Numbers of a chip that its servings tell; what a link takes is too little to see."""
OF_TIME = ("busy_w", "converting_w")
CAPPED = 0.97
"""Share of the limit from which a reading says only that the chip is at its limit."""
PULL = 1.0
"""Weight of the squared differences between chips, in shares of limit and peak; 0.3 to 10 make no difference beyond
half a point to any score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCase:
    """A serving with measured power.

    Args:
        case: the case.
        chip: its chip, with its power in the catalogue.
        amounts: number of the chip → what it applies to in a mean step: seconds of kernels, FLOP, bytes.
        kernels_s: time of the kernels of a mean step [s].
    """

    case: Case
    chip: Chip
    amounts: Mapping[str, float]
    kernels_s: float

    def watts(self, power: ChipPower, step_s: float) -> float:
        """Mean power of a chip [W].

        Args:
            power: numbers of the chip.
            step_s: mean time from step to step; where it is shorter than the predicted kernels, those run all the time
                [s].
        """
        share = min(1.0, step_s / self.kernels_s)
        joules = sum(
            getattr(power, name) * amount * (share if name in OF_TIME else 1.0) for name, amount in self.amounts.items()
        )
        return min(power.idle_w + joules / step_s, power.limit_w)

    def step_s(self, output_tokens_per_s: float) -> float:
        """Mean time from step to step at a rate of output [s]."""
        return self.case.number("concurrency") / output_tokens_per_s

    def values(self, power: ChipPower, output_tokens_per_s: float) -> dict[str, float]:
        """Watts of a chip and joules per output token at the predicted rate of output, and at the measured one.

        Args:
            output_tokens_per_s: predicted, of all chips [tokens/s].
        """
        found: dict[str, float] = {}
        rates = {"": output_tokens_per_s, AT_MEASURED: self.case.measured.get("output_tokens_per_s", 0.0)}
        for end, rate in rates.items():
            if rate:
                watts = self.watts(power, self.step_s(rate))
                found[f"power_w_per_chip{end}"] = watts
                found[f"joules_per_output_token{end}"] = watts * self.case.num_chips / rate
        return found


def has_power(case: Case) -> bool:
    """Whether a case states the power of its chips."""
    return case.kind == "serve" and any(key in case.measured for key in MEASURED_KEYS)


def single_numbers(engine: Engine) -> dict[str, Engine]:
    """Number of the chip → the engine on a chip where that number is 1 and the others are 0; empty without power."""
    chip = engine.table.chip
    if chip.power is None:
        return {}
    names = (*FITTED, "joules_per_link_byte")
    nothing = replace(chip.power, **dict.fromkeys(names, 0.0))
    found: dict[str, Engine] = {}
    for name in names:
        alone = replace(chip, power=replace(nothing, **{name: 1.0}))
        draft = None if engine.draft is None else replace(engine.draft, chip=alone)
        found[name] = replace(engine, table=replace(engine.table, chip=alone), draft=draft)
    return found


def power_case(case: Case, engine: Engine, single: Mapping[str, Engine], work: Workload, ranks: float) -> PowerCase:
    """Prepare a serving.

    Args:
        single: of the engine, see `single_numbers`.
        ranks: ranks and micro-batches that share its requests [count].
    """
    b = case.number("concurrency") / ranks
    amounts = {name: float(step_joules(one, work, b)) for name, one in single.items()}
    kernels_s = float(engine.seconds(mean_step(engine, work, b), engine.time_table(False), two_batch_overlap=False))
    return PowerCase(case=case, chip=engine.table.chip, amounts=amounts, kernels_s=kernels_s)


def fit_power(cases: Iterable[PowerCase]) -> dict[str, ChipPower]:
    """Fit the numbers of all chips together to the power that was measured, at the measured rate of output.

    The log error under a soft L1 loss is minimised, and the squared differences between chips, in shares of their
    limits and peaks. Readings at the limit are not fitted.

    Returns:
        Chip → its numbers.
    """
    used = [one for one in cases if {"power_w_per_chip", "output_tokens_per_s"} <= set(one.case.measured)]
    chips = {one.chip.name: one.chip for one in used}
    units = {name: _units(chip) for name, chip in chips.items()}
    free = [(name, number) for name in chips for number in FITTED if units[name][number]]
    below = [one for one in used if _watts_of(one) < CAPPED * _power(one.chip).limit_w]
    if len(below) <= len(free):
        return {name: _power(chip) for name, chip in chips.items()}
    measured = np.log([_watts_of(one) for one in below])

    parameters = [
        Parameter(
            name=f"{name}.{number}",
            start=0.3 * units[name][number],
            low=0.0,
            form="plain",
            unit=units[name][number],
            alike=number,
            spread=SOFT_L1_SCALE / PULL**0.5,
        )
        for name, number in free
    ]

    def numbers(values: Values) -> dict[str, ChipPower]:
        found = {name: _power(chip) for name, chip in chips.items()}
        for name, number in free:
            found[name] = replace(found[name], **{number: values[f"{name}.{number}"]})
        return found

    def errors(values: Values) -> Array:
        found = numbers(values)
        steps = [one.watts(found[one.chip.name], one.step_s(one.case.measured["output_tokens_per_s"])) for one in below]
        return np.log(steps) - measured

    return numbers(fit(parameters, errors, loss="robust cases").values)


def _power(chip: Chip) -> ChipPower:
    return cast("ChipPower", chip.power)


def _watts_of(one: PowerCase) -> float:
    return one.case.measured["power_w_per_chip"]


def _units(chip: Chip) -> dict[str, float]:
    """What each number is a share of; 0 where the chip has none of it."""
    limit_w = _power(chip).limit_w
    return {
        "busy_w": limit_w,
        "converting_w": 0.0 if chip.supports("fp4") else limit_w,
        "joules_per_flop": limit_w / chip.peak_16_bit,
        "joules_per_hbm_byte": limit_w / chip.hbm_bytes_per_s,
    }


def flat(powers: Mapping[str, ChipPower]) -> dict[str, float]:
    """Fitted numbers by chip and name, such as "h100-sxm.busy_w"."""
    return {f"{chip}.{name}": getattr(power, name) for chip, power in powers.items() for name in FITTED}

"""Power of measured servings: what their kernels do, and what a chip draws for it.

The energy of a step is linear in the numbers of `rackline.hardware.ChipPower`, so a case is prepared once, as the
amount that each number applies to, and then predicted and fitted with any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from rackline.fitting.solver import SOFT_L1_SCALE, Parameter, Values, fit
from rackline.hardware import Chip, ChipPower
from rackline.passes.features import Array
from rackline.serving.fleet import mean_step, step_joules
from rackline.serving.steady import Engine
from rackline.serving.workload import Workload
from rackline.validation.cases import Case

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

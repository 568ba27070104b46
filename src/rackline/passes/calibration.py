"""Calibration: the few numbers per operation class and data type that turn a roofline into a data centre."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rackline.catalog import CalibrationRecord, calibration_record

PARENT_CLASS = {
    "mla_decode": "attention_decode",
    "mla_prefill": "attention_prefill",
    "all_reduce": "collective",
    "all_to_all": "collective",
}

StepPolicy = Literal["blackboard", "serial", "overlap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCalibration:
    """The numbers of one operation class.

    seconds = overhead + max_r t_r + exposed (sum_r t_r - max_r t_r) + ramp sqrt(overhead max_r t_r)

    Args:
        overhead_s: per launch [s].
        eta_compute, eta_memory, eta_link: share of the peak that is reached, 0 to 1.
        exposed: share of the shorter resources that does not hide behind the longest, 0 to 1.
        alpha_s: per message step of a collective [s].
        ramp: how slowly mid-size messages reach the full rate.
        evidence: where the numbers come from.
    """

    overhead_s: float = 0.0
    eta_compute: float = 1.0
    eta_memory: float = 1.0
    eta_link: float = 1.0
    exposed: float = 0.0
    alpha_s: float = 0.0
    ramp: float = 0.0
    evidence: str = "derived"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """All numbers of one stack on one chip.

    Args:
        step_policy: how rows combine into a pass.
        host_s_per_step: host time that does not hide behind the device [s].
        operations: (class, data type) → numbers; data type "*" is the fallback of a class.
    """

    name: str
    stack: str
    step_policy: StepPolicy
    host_s_per_step: float = 0.0
    evidence: str = "derived"
    description: str = ""
    operations: Mapping[tuple[str, str], OperationCalibration] = field(
        default_factory=dict[tuple[str, str], OperationCalibration]
    )

    def lookup(self, op_class: str, dtype: str, compute_dtype: str = "") -> OperationCalibration:
        """Numbers of an operation class and data type; else of its multiply, of the class, of bf16; else unit.

        A class that has no numbers of its own takes those of its parent class.
        """
        for name in (op_class, PARENT_CLASS.get(op_class, op_class)):
            for key in (dtype, compute_dtype, "*", "bf16"):
                if (name, key) in self.operations:
                    return self.operations[name, key]
        return OperationCalibration()


UNIT = Calibration(name="unit", stack="none", step_policy="blackboard", description="the lecture's roofline")


def calibration(name: str) -> Calibration:
    """Load a calibration by name or file.

    Raises:
        UnknownNameError, CatalogError: as the catalogue.
    """
    return calibration_from_record(calibration_record(name))


def calibration_from_record(record: CalibrationRecord) -> Calibration:
    """Build the object of a validated record."""
    operations = {
        (entry.operation_class, entry.dtype): OperationCalibration(
            overhead_s=entry.overhead_s,
            eta_compute=entry.eta_compute,
            eta_memory=entry.eta_memory,
            eta_link=entry.eta_link,
            exposed=entry.exposed,
            alpha_s=entry.alpha_s,
            ramp=entry.ramp,
            evidence=record.evidence,
        )
        for entry in record.operation
    }
    return Calibration(
        name=record.name,
        stack=record.stack,
        step_policy=record.step_policy,
        host_s_per_step=record.host_s_per_step,
        evidence=record.evidence,
        description=record.description,
        operations=operations,
    )

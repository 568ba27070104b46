"""The result of one pass, row by row: amounts, seconds, what binds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rackline.errors import InputError
from rackline.passes.calibration import StepPolicy
from rackline.passes.features import Batch

if TYPE_CHECKING:
    from rackline.passes.table import PassTable, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTime:
    """One row of a pass at one point.

    Args:
        amounts: resource → FLOP or bytes.
        resource_s: resource → time at the reached rate [s].
        overhead_s: launches and message steps [s].
        seconds: the one line [s].
        binds: the longest resource, or "overhead".
        evidence, origin: of the calibration numbers that timed it.
        used: False for an alternative that a faster kernel replaced, or that the stack does not have; its seconds do
            not count.
    """

    name: str
    group: str
    op_class: str
    dtype: str
    stream: str
    amounts: dict[str, float]
    resource_s: dict[str, float]
    overhead_s: float
    seconds: float
    binds: str
    used: bool
    formula: str
    evidence: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """A pass broken down.

    Args:
        seconds: total [s].
        rows: every row of the table.
        by_resource: time of each resource over all rows as if alone, and the overhead [s].
        binds: what the pass is limited by.
        features: the numbers put in.
    """

    seconds: float
    rows: tuple[RowTime, ...]
    by_resource: dict[str, float]
    binds: str
    host_s: float
    policy: StepPolicy
    calibration: str
    evidence: str
    features: dict[str, float]
    assumptions: tuple[str, ...]

    def by_group(self) -> dict[str, float]:
        """Seconds of the rows in use by group [s]."""
        groups: dict[str, float] = {}
        for row in self.rows:
            if row.used:
                groups[row.group] = groups.get(row.group, 0.0) + row.seconds
        return groups

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, SI units."""
        return {
            "seconds": self.seconds,
            "binds": self.binds,
            "policy": self.policy,
            "calibration": self.calibration,
            "evidence": self.evidence,
            "host_s": self.host_s,
            "by_resource_s": self.by_resource,
            "by_group_s": self.by_group(),
            "features": self.features,
            "rows": [
                {
                    "name": row.name,
                    "group": row.group,
                    "class": row.op_class,
                    "dtype": row.dtype,
                    "amounts": row.amounts,
                    "resource_s": row.resource_s,
                    "overhead_s": row.overhead_s,
                    "seconds": row.seconds,
                    "binds": row.binds,
                    "evidence": row.evidence,
                    "origin": row.origin,
                }
                for row in self.rows
                if row.used
            ],
            "assumptions": list(self.assumptions),
        }


def break_down(table: PassTable, batch: Batch, policy: StepPolicy) -> PassTime:
    """Evaluate one point of a scalar table row by row; equals `PassTable.seconds` to rounding."""
    if table.num_layouts is not None:
        raise InputError(
            what="table", given=f"{table.num_layouts} layouts", allowed="one layout; take table.layout(index)"
        )
    features: dict[str, float] = {}
    for name, value in table.features(batch).items():
        if np.size(value) != 1:
            raise InputError(what=f"feature {name}", given=f"{np.size(value)} points", allowed="one point")
        features[name] = float(np.asarray(value).reshape(()))
    in_use = table.rows_in_use()
    known = _mark_alternatives([_row_time(table, row, features) for row in in_use], in_use, policy)
    timed = {id(row): time for row, time in zip(in_use, known, strict=True)}
    rows = tuple(timed.get(id(row)) or _unknown_kernel(table, row, features) for row in table.rows)
    by_resource = {
        resource: sum(row.resource_s.get(resource, 0.0) for row in rows if row.used)
        for resource in ("compute", "hbm", "scale_up", "scale_out")
    }
    overhead = sum(row.overhead_s for row in rows if row.used)
    by_resource["overhead"] = overhead
    host_s = table.calibration.host_s_per_step
    if policy == "blackboard":
        longest = max(by_resource[r] for r in ("compute", "hbm", "scale_up", "scale_out"))
        total = longest + overhead
    elif policy == "overlap":
        streams: dict[str, float] = {}
        for row in rows:
            if row.used:
                streams[row.stream] = streams.get(row.stream, 0.0) + row.seconds
        total = max(streams.values(), default=0.0)
    else:
        total = sum(row.seconds for row in rows if row.used)
    binds = max(by_resource, key=lambda resource: by_resource[resource])
    return PassTime(
        seconds=total + host_s,
        rows=rows,
        by_resource=by_resource,
        binds=binds,
        host_s=host_s,
        policy=policy,
        calibration=table.calibration.name,
        evidence=table.calibration.evidence,
        features=features,
        assumptions=table.assumptions,
    )


def _row_time(table: PassTable, row: Row, features: dict[str, float]) -> RowTime:
    amounts: dict[str, float] = {}
    resource_s: dict[str, float] = {}
    for resource in ("compute", "hbm", "scale_up", "scale_out"):
        entries = row.amounts(resource)
        if entries:
            amount = sum(float(value) * features.get(name, 0.0) for name, value in entries.items())
            amounts[resource] = amount
            resource_s[resource] = amount / float(table.rate(row, resource))
    evidence, origin = table.origin(row)
    overhead = sum(float(value) * features.get(name, 0.0) for name, value in table.overhead_s(row).items())
    longest = max(resource_s.values(), default=0.0)
    rest = sum(resource_s.values()) - longest
    seconds = overhead + longest + table.exposed(row) * rest
    seconds += float(table.ramp(row)) * (overhead * longest) ** 0.5
    binds = max(resource_s, key=lambda resource: resource_s[resource]) if resource_s else "overhead"
    return RowTime(
        name=row.name,
        group=row.group,
        op_class=row.op_class,
        dtype=row.dtype,
        stream=row.stream,
        amounts=amounts,
        resource_s=resource_s,
        overhead_s=overhead,
        seconds=seconds,
        binds="overhead" if overhead > longest else binds,
        used=True,
        formula=row.formula,
        evidence=evidence,
        origin=origin,
    )


def _unknown_kernel(table: PassTable, row: Row, features: dict[str, float]) -> RowTime:
    """An alternative that the calibration has no numbers of: its amounts, no time, and not used."""
    return replace(
        _row_time(table, row, features),
        resource_s={},
        overhead_s=0.0,
        seconds=0.0,
        binds="",
        used=False,
        evidence="",
        origin="the stack has no such kernel",
    )


def _rank(time: RowTime, policy: StepPolicy) -> float:
    """What alternatives are compared by: the blackboard counts wire time only."""
    return max(time.resource_s.values(), default=0.0) if policy == "blackboard" else time.seconds


def _mark_alternatives(times: list[RowTime], rows: tuple[Row, ...], policy: StepPolicy) -> tuple[RowTime, ...]:
    best: dict[str, int] = {}
    for index, row in enumerate(rows):
        if not row.choice:
            continue
        kept = best.setdefault(row.choice, index)
        if _rank(times[index], policy) < _rank(times[kept], policy):
            best[row.choice] = index
    return tuple(
        time if not row.choice or best[row.choice] == index else replace(time, used=False)
        for index, (time, row) in enumerate(zip(times, rows, strict=True))
    )

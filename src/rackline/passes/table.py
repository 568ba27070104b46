"""The pass table: a row for each operation, a column for each resource, entries linear in the features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rackline.hardware import Chip, Cluster
from rackline.passes.breakdown import Breakdown, PassTime, joule_numbers
from rackline.passes.calibration import Calibration, StepPolicy, checked_policy
from rackline.passes.evaluate import TimeTable
from rackline.passes.features import AdapterLaw, Array, Batch, ExpertLaw, FloatLike, ReadLaw
from rackline.passes.javascript import StepFunction, compile_table
from rackline.passes.row import PassNumbers, Row, RowNumbers, row_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTable:
    """All rows of a pass on one chip of a deployment (or of many layouts at once).

    Args:
        rows: the operations.
        chip, cluster: peaks and links; cluster None for a single chip.
        calibration: the numbers of the line; its step policy is the default policy.
        kinds: attention kinds by label, for the features.
        experts: law of the busiest expert-parallel rank, None for dense models.
        adapters: law of the adapters that sequences use, None where there is at most one.
        num_layouts: None for scalar coefficients, else the length of every coefficient array.
        assumptions: assumptions of the table.
    """

    rows: tuple[Row, ...]
    chip: Chip
    cluster: Cluster | None
    calibration: Calibration
    kinds: Mapping[str, ReadLaw]
    experts: ExpertLaw | None = None
    adapters: AdapterLaw | None = None
    num_layouts: int | None = None
    assumptions: tuple[str, ...] = ()
    # cached forms, derived from the other fields
    _breakdowns: dict[StepPolicy, Breakdown] = field(
        default_factory=dict[StepPolicy, Breakdown], init=False, repr=False, compare=False
    )
    _time_tables: dict[StepPolicy, TimeTable] = field(
        default_factory=dict[StepPolicy, TimeTable], init=False, repr=False, compare=False
    )
    _joule_tables: dict[str, TimeTable] = field(
        default_factory=dict[str, TimeTable], init=False, repr=False, compare=False
    )

    def with_calibration(self, calibration: Calibration) -> PassTable:
        """The same rows under another calibration."""
        return replace(self, calibration=calibration)

    def rows_in_use(self) -> tuple[Row, ...]:
        """Rows whose kernel the calibration knows; alternatives that the stack lacks are dropped."""
        return tuple(
            row for row in self.rows if not row.is_fabric or self.calibration.collective(row.op_class) is not None
        )

    def row_numbers(self, row: Row) -> RowNumbers:
        """A row with its rates and overheads."""
        return row_numbers(row, self.calibration, self.chip, self.cluster)

    def numbers(self) -> PassNumbers:
        """All rows with their rates and overheads."""
        return PassNumbers(
            rows=tuple(self.row_numbers(row) for row in self.rows),
            calibration=self.calibration,
            num_layouts=self.num_layouts,
        )

    def time_table(self, policy: StepPolicy | None = None) -> TimeTable:
        """Resolve rates and efficiencies: the form that evaluates millions of points."""
        chosen = self._policy(policy)
        if chosen not in self._time_tables:
            self._time_tables[chosen] = TimeTable.build(self.numbers(), chosen)
        return self._time_tables[chosen]

    def breakdown(self, policy: StepPolicy | None = None) -> Breakdown:
        """Resolve rates and efficiencies: the form that breaks down one point after another, row by row."""
        chosen = self._policy(policy)
        if chosen not in self._breakdowns:
            self._breakdowns[chosen] = Breakdown.of(self.numbers(), chosen, self.assumptions)
        return self._breakdowns[chosen]

    def joule_table(self) -> TimeTable:
        """The form that evaluates the energy of millions of points, without what the chip draws idle [J]."""
        if "" not in self._joule_tables:
            self._joule_tables[""] = TimeTable.build(joule_numbers(self.numbers(), self.chip), "serial")
        return self._joule_tables[""]

    def kernel_joules(self, batch: Batch) -> Array:
        """Energy that the kernels of a pass take on one chip beyond what it draws idle [J]; shapes as `seconds`."""
        return self.joule_table().seconds(self.features(batch))

    def features(self, batch: Batch) -> dict[str, FloatLike]:
        """Features of a batch for this table."""
        return batch.in_blocks(self.calibration.context_block).features(self.kinds, self.experts, self.adapters)

    def seconds(self, batch: Batch, policy: StepPolicy | None = None) -> Array:
        """Time of the pass [s].

        Args:
            batch: fields of shape (), (points,) or (layouts, points).

        Returns:
            Shape of the batch, with a leading axis of layouts when the table has several.
        """
        return self.time_table(policy).seconds(self.features(batch))

    def time(self, batch: Batch, policy: StepPolicy | None = None) -> PassTime:
        """Break one pass down row by row. Raises InputError when the table or batch has more than one point."""
        return self.breakdown(policy).time(self.features(batch))

    def compile(self, policy: StepPolicy | None = None) -> StepFunction:
        """One scalar function of the features, for simulators. Raises InputError for several layouts."""
        return compile_table(self.time_table(policy), self.experts)

    def layout(self, index: int) -> PassTable:
        """The scalar table of one layout of several."""
        if self.num_layouts is None:
            return self
        select = getattr(self.experts, "layout", None)
        experts = select(index) if select is not None else self.experts
        return replace(self, rows=tuple(row.take(index) for row in self.rows), experts=experts, num_layouts=None)

    def take(self, layouts: Array) -> PassTable:
        """The table of some layouts of several, shape (layouts,) of indices."""
        select = getattr(self.experts, "take", None)
        found = replace(
            self,
            rows=tuple(row.take(layouts) for row in self.rows),
            experts=select(layouts) if select is not None else self.experts,
            num_layouts=len(layouts),
        )
        found._time_tables.update({policy: each.take(layouts) for policy, each in self._time_tables.items()})
        found._joule_tables.update({key: each.take(layouts) for key, each in self._joule_tables.items()})
        return found

    def _policy(self, policy: StepPolicy | None) -> StepPolicy:
        return checked_policy(self.calibration.step_policy if policy is None else policy)

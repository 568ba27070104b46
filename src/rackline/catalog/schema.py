"""Records of the catalogue: chips, clusters, calibrations; models are imported from their own file.

A record mirrors one TOML file; ``catalog.base`` says what makes it strict.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rackline.catalog.base import (
    Count,
    Date,
    Evidence,
    Name,
    NonNegative,
    Positive,
    Record,
    Source,
    SourcedRecord,
    Text,
)
from rackline.catalog.calibrations import CalibrationRecord, CollectiveRecord, OperationRecord
from rackline.catalog.layers import KindRecord, LayeredRecord, LayerRecord
from rackline.catalog.model_record import AggregateRecord, ModelRecord, PublishedRecord
from rackline.catalog.models import ArchitectureRecord, FfnRecord, GqaRecord, MlaRecord, MoeRecord

__all__ = [
    "AggregateRecord",
    "ArchitectureRecord",
    "CalibrationRecord",
    "ChipRecord",
    "ClusterRecord",
    "CollectiveRecord",
    "Evidence",
    "FfnRecord",
    "GqaRecord",
    "KindRecord",
    "LayerRecord",
    "LayeredRecord",
    "LevelRecord",
    "MlaRecord",
    "ModelRecord",
    "MoeRecord",
    "OperationRecord",
    "PeakRates",
    "PublishedRecord",
    "Source",
    "SourcedRecord",
]


class PeakRates(Record):
    """Dense peak of the matrix units by data type [FLOP/s]; absent means not supported."""

    bf16: Positive | None = None
    fp16: Positive | None = None
    fp8: Positive | None = None
    fp4: Positive | None = None
    int8: Positive | None = None
    fp32: Positive | None = None

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if not self.model_dump(exclude_none=True):
            raise ValueError("a chip needs the peak of at least one data type")
        return self


RentKind = Literal["on_demand", "reserved_1y", "reserved_3y", "contract", "owned"]


class RentRecord(Record):
    """A dated price of a chip-hour.

    Args:
        usd_per_chip_hour: With its share of host and network [USD/hour].
        date: When it was asked, as YYYY[-MM[-DD]].
    """

    usd_per_chip_hour: Positive
    date: Date


class PowerRecord(Record):
    """What a chip draws for what it does; `rackline.hardware.ChipPower` has the equation.

    Args:
        idle_w: With a loaded program that waits [W].
        busy_w: In addition, while a kernel runs on the chip [W].
        converting_w: In addition, while a kernel scales or converts weights outside of the matrix units [W].
        joules_per_flop: Of a bf16 matrix product; other types in proportion to their bits [J/FLOP].
        joules_per_hbm_byte: Read or written, with the way across the chip [J/byte].
        joules_per_link_byte: Sent to another chip [J/byte].
    """

    idle_w: Positive
    busy_w: NonNegative
    converting_w: NonNegative
    joules_per_flop: NonNegative
    joules_per_hbm_byte: NonNegative
    joules_per_link_byte: NonNegative


class ChipRecord(SourcedRecord):
    """One accelerator.

    Args:
        vendor: Who makes it.
        generation: Family used as the parent of calibrations ("hopper", "tpu-v5e").
        released: Date of release, YYYY[-MM[-DD]].
        peak_flop_per_s: Dense peaks [FLOP/s].
        hbm_bytes: Memory that the driver reports [bytes].
        driver_bytes: Of it, what the driver keeps from programs [bytes].
        hbm_bytes_per_s: Peak memory bandwidth [bytes/s].
        cores: Streaming multiprocessors or compute units [count].
        l2_bytes: Last-level cache [bytes].
        power_w: Rated power of the chip alone, its default limit [W].
        power: What it draws for what it does; that of a chip of its generation where nothing is said.
        inline_ecc: Whether check bits are kept in and moved through the memory itself, a sixteenth of it.
        usd_per_chip_hour: The price that is used unless another kind is asked for [USD/hour].
        rent_kind: Of which kind that price is.
        rents: Dated prices by kind: on demand, reserved for one or three years, an index of contracts, or what owning
            costs.
    """

    vendor: Text
    generation: Name
    released: Date | None = None
    peak_flop_per_s: PeakRates
    hbm_bytes: Positive
    hbm_bytes_per_s: Positive
    driver_bytes: NonNegative = 0.0
    cores: Count | None = None
    l2_bytes: Positive | None = None
    power_w: Positive | None = None
    power: PowerRecord | None = None
    inline_ecc: bool = False
    usd_per_chip_hour: Positive | None = None
    rent_kind: RentKind | None = None
    rents: dict[RentKind, RentRecord] = Field(default_factory=dict[RentKind, RentRecord])


class LevelRecord(Record):
    """One level of the fabric.

    Args:
        name: scale_up (the chip's own links) or scale_out (the data-centre network).
        size: Chips in one domain [count].
        bytes_per_s_each_way: Per chip, all its links of this level together, one direction [bytes/s].
        latency_s: From chip to chip over the shortest path [s].
        topology: switch, torus or mesh (full mesh of direct links).
        torus_axes: Chips along each axis; only for a torus [count].
        links_per_chip: Cables or traces of this level that leave one chip [count].
        switch_ports: Ports of one switch chip of this level [count].
        num_switches: Switch chips of one domain, where more are built in than the ports need [count].
        in_network_reduction: Whether the switches add up and multicast what the chips send, so that an all-reduce
            sends its buffer once instead of twice.
    """

    name: Literal["scale_up", "scale_out"]
    size: Count
    bytes_per_s_each_way: Positive
    latency_s: NonNegative
    topology: Literal["switch", "torus", "mesh"]
    torus_axes: tuple[Count, ...] | None = None
    links_per_chip: Count | None = None
    switch_ports: Count | None = None
    num_switches: Count | None = None
    in_network_reduction: bool = False

    @model_validator(mode="after")
    def _reducing_switch(self) -> Self:
        if self.in_network_reduction and self.topology != "switch":
            raise ValueError("in_network_reduction belongs to topology switch, and only there")
        return self

    @model_validator(mode="after")
    def _axes_match(self) -> Self:
        if (self.topology == "torus") != (self.torus_axes is not None):
            raise ValueError("torus_axes belong to topology torus, and only there")
        product = 1
        for axis in self.torus_axes or (self.size,):
            product *= axis
        if product != self.size:
            raise ValueError(f"torus_axes multiply to {product}, but size is {self.size}")
        return self


class ClusterRecord(SourcedRecord):
    """Chips joined by a fabric: a node, a rack, a slice, or several of them.

    Args:
        chip: Catalogue name of the chip, or a file beside this one.
        num_chips: Chips of one unit; what a plan uses unless told otherwise [count].
        levels: scale_up, then optionally scale_out.
        usd_per_chip_hour: A dated price [USD/hour].
        power_w_per_chip: All-in power with host, network and cooling, per chip, as its nameplate says [W].
        host_w_per_chip: Power of host, fans and switches of the machine, per chip [W].
        supply_efficiency: Power behind the machine's supplies over power at the wall [1].
        chips_per_rack: Chips in one rack; the scale-up size where nothing else is said [count].
        chips_per_host: Chips that one operating system holds; the scale-up size up to 8, else 4, where nothing else is
            said [count].
        rented_chips: Chips of the smallest unit that one rents: a host, a tray, a slice; those of a host where nothing
            else is said [count].
        calibration: Calibration of what runs there, by name or as a file beside this one, which `auto` takes.
    """

    chip: Text
    num_chips: Count
    levels: Annotated[tuple[LevelRecord, ...], Field(min_length=1)]
    usd_per_chip_hour: Positive | None = None
    power_w_per_chip: Positive | None = None
    host_w_per_chip: Positive | None = None
    supply_efficiency: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    chips_per_rack: Count | None = None
    chips_per_host: Count | None = None
    rented_chips: Count | None = None
    calibration: Text | None = None

    @model_validator(mode="after")
    def _levels_are_ordered(self) -> Self:
        names = [level.name for level in self.levels]
        if names not in (["scale_up"], ["scale_up", "scale_out"]):
            raise ValueError(f"levels are scale_up, then at most one scale_out; got {', '.join(names)}")
        if self.num_chips > self.levels[-1].size:
            raise ValueError(f"num_chips {self.num_chips} exceeds the largest level's {self.levels[-1].size}")
        return self

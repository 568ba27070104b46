"""The few numbers of a chip's power."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rackline.catalog import ChipRecord, PowerRecord, chip_record, names

BITS = {"fp32": 32.0, "bf16": 16.0, "fp16": 16.0, "fp8": 8.0, "int8": 8.0, "fp4": 4.0}
"""Bits of the factors of a product; what a multiplication takes is taken to be proportional to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipPower:
    """The few numbers of a chip's power.

    Equation:
        joules of a pass = idle_w · seconds + sum over kernels of (busy_w + converting_w) · seconds without overhead
                           + joules_per_flop · FLOP + joules_per_hbm_byte · bytes + joules_per_link_byte · bytes

    at most limit_w · seconds; a kernel that reaches the limit runs at a lower clock, which measured rates include.

    Args:
        idle_w: with a loaded program that waits [W].
        busy_w: in addition, while a kernel runs on the chip [W].
        converting_w: in addition, while a kernel scales or converts weights outside of the matrix units [W].
        joules_per_flop: of a bf16 matrix product; other types in proportion to their bits [J/FLOP].
        joules_per_hbm_byte: read or written [J/byte].
        joules_per_link_byte: sent to another chip [J/byte].
        limit_w: rated power, to which the chip keeps by itself [W].
        origin: the chips to which the numbers were fitted.
        other_generation: whether those are of other generations.
    """

    idle_w: float
    busy_w: float
    converting_w: float
    joules_per_flop: float
    joules_per_hbm_byte: float
    joules_per_link_byte: float
    limit_w: float
    origin: str
    other_generation: bool = False

    def flop_joules(self, dtype: str) -> float:
        """Energy of one FLOP of a data type [J].

        >>> from rackline.hardware import chip
        >>> power = chip("h100-sxm").power
        >>> power.flop_joules("fp8") / power.flop_joules("bf16")
        0.5
        """
        return self.joules_per_flop * BITS.get(dtype.partition("_")[0], 16.0) / 16.0

    def clock_under(self, cap_w: float | None, drawn_w: float) -> float:
        """Share of the clock at which a kernel keeps below a power cap [1].

        Equation:
            sqrt((cap_w - idle_w) / (min(drawn_w, limit_w) - idle_w)), at most 1

        Args:
            cap_w: power cap; None is the limit [W].
            drawn_w: power of the kernel at the default limit [W].

        Assumes: power beyond idle is proportional to the square of the clock (as in `rackline.passes.borrowed`).
        """
        drawn_w = min(drawn_w, self.limit_w)
        if cap_w is None or cap_w >= drawn_w:
            return 1.0
        return ((cap_w - self.idle_w) / (drawn_w - self.idle_w)) ** 0.5

    @classmethod
    def of_record(cls, record: ChipRecord) -> ChipPower | None:
        """The chip's own numbers, else those of its generation, else those of other generations; None without a limit.

        Within a generation, idle and busy power grow with the limit, and an operation takes the same energy. From other
        generations a chip takes the mean shares: of the limit, and for an operation of the limit over the peak.
        """
        if record.power_w is None:
            return None
        if record.power is not None:
            return _scaled(record.power, 1.0, record.name, record.power_w)
        measured = [one for one in map(chip_record, names("chips")) if one.power is not None]
        for other in measured:
            if other.generation == record.generation and other.power_w is not None and other.power is not None:
                return _scaled(other.power, record.power_w / other.power_w, other.name, record.power_w)
        return _of_others(record, record.power_w, measured)


def peak_16_bit(peak_flop_per_s: Mapping[str, float]) -> float:
    """Peak of matrix products as if of 16 bits: the highest rate times bits over 16 [FLOP/s].

    Args:
        peak_flop_per_s: dense peak by data type [FLOP/s]; fp32 counts where there is no other.

    >>> peak_16_bit({"bf16": 989e12, "fp8": 1979e12, "fp32": 67e12}) / 1e12
    989.5
    """
    return max(
        rate * BITS.get(dtype, 16.0) / 16.0
        for dtype, rate in peak_flop_per_s.items()
        if dtype != "fp32" or len(peak_flop_per_s) == 1
    )


def shares(record: ChipRecord, power: PowerRecord, limit_w: float) -> dict[str, float]:
    """The numbers of a chip as shares of its limit, at its peaks for energies of an operation [1]."""
    return {
        "idle_w": power.idle_w / limit_w,
        "busy_w": power.busy_w / limit_w,
        "converting_w": power.converting_w / limit_w,
        "joules_per_flop": power.joules_per_flop * _peak(record) / limit_w,
        "joules_per_hbm_byte": power.joules_per_hbm_byte * record.hbm_bytes_per_s / limit_w,
    }


def _peak(record: ChipRecord) -> float:
    return peak_16_bit(record.peak_flop_per_s.model_dump(exclude_none=True))


def _scaled(power: PowerRecord, share: float, origin: str, limit_w: float) -> ChipPower:
    return ChipPower(
        idle_w=power.idle_w * share,
        busy_w=power.busy_w * share,
        converting_w=power.converting_w * share,
        joules_per_flop=power.joules_per_flop,
        joules_per_hbm_byte=power.joules_per_hbm_byte,
        joules_per_link_byte=power.joules_per_link_byte,
        limit_w=limit_w,
        origin=origin,
        other_generation=False,
    )


def _of_others(record: ChipRecord, limit_w: float, measured: list[ChipRecord]) -> ChipPower:
    own = record.peak_flop_per_s
    of: list[dict[str, float]] = []
    converting: list[float] = []
    for other in measured:
        if other.power is not None and other.power_w is not None:
            of.append(shares(other, other.power, other.power_w))
            if (other.peak_flop_per_s.fp4 is None) == (own.fp4 is None):  # scales of blocks are applied in hardware
                converting.append(of[-1]["converting_w"])
    mean = {name: sum(one[name] for one in of) / len(of) for name in of[0]}
    return ChipPower(
        idle_w=mean["idle_w"] * limit_w,
        busy_w=mean["busy_w"] * limit_w,
        converting_w=sum(converting) / max(len(converting), 1) * limit_w,
        joules_per_flop=mean["joules_per_flop"] * limit_w / _peak(record),
        joules_per_hbm_byte=mean["joules_per_hbm_byte"] * limit_w / record.hbm_bytes_per_s,
        joules_per_link_byte=measured[0].power.joules_per_link_byte if measured[0].power else 0.0,
        limit_w=limit_w,
        origin=", ".join(other.name for other in measured),
        other_generation=True,
    )

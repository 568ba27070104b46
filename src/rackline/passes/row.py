"""One operation of a pass: its demand on the chip or the fabric, linear in the features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never

import numpy as np

from rackline.errors import InputError
from rackline.passes.features import ONE, Array, FloatLike

Resource = Literal["compute", "hbm", "scale_up", "scale_out"]
RESOURCES: tuple[Resource, ...] = ("compute", "hbm", "scale_up", "scale_out")
CHIP_RESOURCES: tuple[Resource, Resource] = ("compute", "hbm")
FABRIC_RESOURCES: tuple[Resource, Resource] = ("scale_up", "scale_out")
Amounts = Mapping[str, FloatLike]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One operation of the pass, all its layers together. Coefficients are scalars or one value per layout.

    A row works either on the chip (compute, hbm) or on the fabric (scale_up, scale_out).

    Args:
        name, group: name of the operation, and the part of the layer that it belongs to.
        op_class, dtype: the calibration that applies; dtype also selects the compute peak.
        compute: feature → FLOP per unit of the feature.
        hbm, scale_up, scale_out: feature → bytes per unit of the feature.
        padding: part of `compute` on rows that nobody asked for: it takes time, and hardly energy, since the inputs of
            such rows stay as they are.
        compute_dtype: data type of the matrix product, if it is not `dtype`.
        launches: feature → kernel or collective launches in the pass [count].
        extra: feature → bytes that helper kernels move: around a mixture of experts (`permute` of them count), or to
            quantise the input of a product (where the stack does not fuse it).
        depth: feature → elements that the kernel processes sequentially, on any number of cores [count].
        tiles: feature → tiles of work that the cores share [count].
        group_size: ranks of a collective [count].
        scale_up_steps, scale_out_steps: message steps in sequence, per unit of `step_feature` [count].
        step_feature: feature that message steps are proportional to; once per pass by default.
        stream: rows of one stream follow each other; streams overlap under the `overlap` policy.
        choice: rows with the same non-empty choice are kernels for one job; the fastest is used.
        formula: how the coefficients are computed.
    """

    name: str
    group: str
    op_class: str
    dtype: str
    compute: Amounts = field(default_factory=dict[str, FloatLike])
    hbm: Amounts = field(default_factory=dict[str, FloatLike])
    scale_up: Amounts = field(default_factory=dict[str, FloatLike])
    scale_out: Amounts = field(default_factory=dict[str, FloatLike])
    padding: Amounts = field(default_factory=dict[str, FloatLike])
    compute_dtype: str = ""
    launches: Amounts = field(default_factory=dict[str, FloatLike])
    extra: Amounts = field(default_factory=dict[str, FloatLike])
    depth: Amounts = field(default_factory=dict[str, FloatLike])
    tiles: Amounts = field(default_factory=dict[str, FloatLike])
    group_size: FloatLike = 1.0
    scale_up_steps: FloatLike = 0.0
    scale_out_steps: FloatLike = 0.0
    step_feature: str = ONE
    stream: str = "compute"
    choice: str = ""
    formula: str = ""

    def __post_init__(self) -> None:
        if (self.compute or self.hbm) and (self.scale_up or self.scale_out):
            raise InputError(
                what=f"row {self.name}",
                given="compute or hbm together with scale_up or scale_out",
                allowed="one pair of resources per row",
            )

    def amounts(self, resource: Resource) -> Amounts:
        """Coefficients of one resource."""
        match resource:
            case "compute":
                return self.compute
            case "hbm":
                return self.hbm
            case "scale_up":
                return self.scale_up
            case "scale_out":
                return self.scale_out
        assert_never(resource)

    @property
    def is_fabric(self) -> bool:
        """Whether the row moves bytes between chips."""
        return bool(self.scale_up or self.scale_out)

    @property
    def resources(self) -> tuple[Resource, Resource]:
        """The two resources that the row may use."""
        return FABRIC_RESOURCES if self.is_fabric else CHIP_RESOURCES

    def features(self) -> set[str]:
        """Features that any entry uses."""
        parts = (*(self.amounts(resource) for resource in RESOURCES), self.launches, self.extra, self.depth, self.tiles)
        return {name for part in parts for name in part} | ({self.step_feature} if self.is_fabric else set())

    def where(self, holds: Array) -> Row:
        """The same without any work in the layouts where it does not hold."""
        shares = holds.astype(float)
        names = ("compute", "hbm", "padding", "launches", "extra", "depth", "tiles")
        return replace(self, **{name: scaled(getattr(self, name), shares) for name in names})

    def take(self, layouts: int | Array) -> Row:
        """The scalar row of one layout of several, or the row of some of them."""

        def pick(value: FloatLike) -> FloatLike:
            array = np.asarray(value)
            chosen = array[layouts] if array.ndim else array
            return chosen if chosen.ndim else float(chosen)

        def pick_all(amounts: Amounts) -> Amounts:
            return {name: pick(value) for name, value in amounts.items()}

        return replace(
            self,
            compute=pick_all(self.compute),
            hbm=pick_all(self.hbm),
            padding=pick_all(self.padding),
            scale_up=pick_all(self.scale_up),
            scale_out=pick_all(self.scale_out),
            launches=pick_all(self.launches),
            extra=pick_all(self.extra),
            depth=pick_all(self.depth),
            tiles=pick_all(self.tiles),
            group_size=pick(self.group_size),
            scale_up_steps=pick(self.scale_up_steps),
            scale_out_steps=pick(self.scale_out_steps),
        )


def merge(*amounts: Amounts) -> dict[str, FloatLike]:
    """Add coefficients of the same feature."""
    total: dict[str, FloatLike] = {}
    for part in amounts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total


def scaled(amounts: Amounts, factor: FloatLike) -> dict[str, FloatLike]:
    """Multiply all coefficients."""
    return {name: value * factor for name, value in amounts.items()}


def feature_names(rows: Iterable[Row]) -> tuple[str, ...]:
    """Features of all rows in a stable order."""
    return tuple(sorted({name for row in rows for name in row.features()} | {ONE}))

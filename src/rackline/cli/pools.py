"""Options of a prefill pool → objects of the library. Everything heavy is imported where it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rackline.cli.options import find_calibration, read_layouts, whole
from rackline.errors import InputError, nearest_names

if TYPE_CHECKING:
    from rackline.arch import AnyModel
    from rackline.hardware import Cluster
    from rackline.parallel import Layout
    from rackline.passes import Calibration

KINDS = ("both", "aggregated")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillOptions:
    """What the command line says of a prefill pool.

    Args:
        wanted: whether separate pools are looked at.
        cluster: of the prefill pool, None for the same.
        layouts: it may use, None for all.
        calibration: of its chip, None for the same.
    """

    wanted: bool
    cluster: Cluster | None = None
    layouts: list[Layout] | None = None
    calibration: Calibration | None = None


def read_prefill(
    serving: str,
    on: str | None,
    chips: str | None,
    layout: str | None,
    model: AnyModel,
    cluster: Cluster,
    calibration: str,
) -> PrefillOptions:
    """Read --serving and --prefill-*.

    Raises:
        InputError: an unknown kind, or options of a pool that is not looked at.
    """
    if serving not in KINDS:
        near = nearest_names(serving, KINDS, 1)
        raise InputError(what="--serving", given=serving, allowed=", ".join(KINDS), nearest=near[0] if near else "both")
    wanted = serving != "aggregated"
    if not wanted:
        for name, value in (("--prefill-on", on), ("--prefill-chips", chips), ("--prefill-layout", layout)):
            if value is not None:
                raise InputError(what=name, given=value, allowed="only with --serving both")
        return PrefillOptions(wanted=False)
    if chips is not None and on is None:
        raise InputError(what="--prefill-chips", given=chips, allowed="together with --prefill-on CLUSTER")
    if on is None:
        return PrefillOptions(wanted=True, layouts=read_layouts(layout, model, cluster))
    from rackline.hardware import cluster as find_cluster

    other = find_cluster(on)
    if chips is not None:
        other = other.with_num_chips(whole(chips, "--prefill-chips"))
    return PrefillOptions(
        wanted=True,
        cluster=other,
        layouts=read_layouts(layout, model, other),
        calibration=find_calibration(calibration, other.chip),
    )

"""What `tiers` and `price` share: the rent of a chip, and the cheapest deployment for a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rackline.api.option import option
from rackline.api.resolve import calibration_of, layouts_of, precisions_of
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.api.option import CalibrationLike
    from rackline.arch import AnyModel
    from rackline.hardware import Cluster
    from rackline.parallel import Deployment
    from rackline.pricing import Rent

MOST_MARGIN = 1000.0
CALIBRATION = option("object", "auto, trtllm, vllm, sglang, generic, unit (ideal roofline) or a TOML file")


def rent_of(
    cluster: Cluster,
    *,
    purchase_usd: float | None = None,
    years: float = 4.0,
    usd_per_kwh: float = 0.0,
    pue: float = 1.0,
) -> Rent:
    """What a chip-hour costs: the cluster's price, or what was bought.

    Args:
        purchase_usd: price of a chip with its share of the site; None for the cluster's rent [USD].
        years: of use of what was bought [year].
        usd_per_kwh: price of energy [USD/kWh].
        pue: power of the site over that of the machines [1].

    Raises:
        InputError: the cluster has no price, or no power where something was bought.
    """
    from rackline.pricing import Rent, purchase_usd_per_hour

    power = cluster.power_w_per_chip
    if purchase_usd is None:
        if cluster.usd_per_chip_hour is None:
            raise InputError(
                what=f"price of {cluster.name}", given=None, allowed="USD per chip-hour, see --help", nearest="2.50"
            )
        return Rent(
            usd_per_chip_hour=cluster.usd_per_chip_hour, power_w_per_chip=power, pue=pue, usd_per_kwh=usd_per_kwh
        )
    if power is None:
        raise InputError(
            what=f"power of {cluster.name}",
            given=None,
            allowed="`set` power_w_per_chip=WATTS, which `purchase` needs",
        )
    paid = purchase_usd_per_hour(purchase_usd, years, power, pue, usd_per_kwh)
    return Rent(usd_per_chip_hour=paid, power_w_per_chip=power, pue=pue, usd_per_kwh=usd_per_kwh, how="purchase")


def cheapest_deployment(
    model: AnyModel,
    cluster: Cluster,
    *,
    layout: str | None,
    precision: str,
    calibration: CalibrationLike,
    input_len: float,
    output_len: float,
) -> Deployment:
    """The cheapest deployment of this precision for prompts of this length, among the layouts that were left free.

    Args:
        layout: parts that are fixed; None for none.
        input_len: prompt of a request [tokens].
        output_len: what it generates [tokens].

    Raises:
        InputError: none fits.
    """
    from rackline.parallel import Deployment
    from rackline.search import plan
    from rackline.serving.stack import stack_of
    from rackline.serving.workload import Workload

    numbers = calibration_of(calibration, cluster.chip)
    answer = plan(
        model,
        cluster,
        Workload(input_len=input_len, output_len=max(output_len, 2.0)),
        calibration=numbers,
        precisions=precisions_of([precision], model, cluster),
        layouts=layouts_of(layout, model, cluster),
        pools=False,
        served=False,
    )
    if answer.best is None:
        raise InputError(
            what="deployment", given=f"{model.name} on {cluster.name}", allowed=f"one that fits: {answer.reason}"
        )
    return Deployment(
        model=model,
        cluster=cluster,
        layout=answer.best.layout,
        precision=answer.best.precision,
        calibration=numbers,
        routing=stack_of(numbers, cluster.chip.hbm_bytes).routing,
    )

"""What `tiers` and `price` share: the rent of a chip, and what the cheapest deployment for a request costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rackline.api.option import option
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.api.resolve import Resolved
    from rackline.api.watch import Watch
    from rackline.hardware import Cluster
    from rackline.pricing import Rent, TokenCosts
    from rackline.serving.workload import Workload

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


def costs_of(
    resolved: Resolved,
    layout: str | None,
    request: Workload,
    watch: Watch,
    *,
    tpot_s: float | None = None,
    memory_fraction: float = 0.9,
) -> TokenCosts:
    """Costs of the deployment on which this request costs least, among the layouts that were left free.

    A plan finds the cheapest of each kind of layout; of these the one with the least bare cost of the request counts.

    Args:
        resolved: model, cluster, precision and kernels.
        layout: the parts of it that are fixed.
        request: lengths of the request.
        tpot_s: limit on time per output token; where no layout keeps it, it is left out [s].
        memory_fraction: share of the memory that the server may use.

    Raises:
        InputError: none fits.
    """
    from rackline.parallel import matching_layouts
    from rackline.pricing import TokenCosts
    from rackline.search import Constraints, SearchSpace, plan

    model, cluster = resolved.model, resolved.cluster
    with watch.moving("searching for the cheapest deployment"):
        answer = plan(
            model,
            cluster,
            request,
            calibration=resolved.calibration,
            constraints=Constraints(memory_fraction=memory_fraction),
            prefill=None,
            served=False,
            search_space=SearchSpace(
                precisions=resolved.precisions, layouts=matching_layouts(layout, model, cluster.num_chips)
            ),
        )
    if answer.best is None:
        raise InputError(
            what="deployment", given=f"{model.name} on {cluster.name}", allowed=f"one that fits: {answer.reason}"
        )
    found = [TokenCosts.of(resolved.deployment(one.layout), memory_fraction=memory_fraction) for one in answer.ranked]

    def least(limit: float | None) -> list[float]:
        return [float(one.request_chip_s(request.input_len, request.output_len, limit)[0]) for one in found]

    cost = least(tpot_s)
    if not min(cost) < float("inf"):
        cost = least(None)
    return found[cost.index(min(cost))]

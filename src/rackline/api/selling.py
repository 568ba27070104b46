"""What `tiers` and `price` share: the rent of a chip, and the cheapest deployment for a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rackline.api.option import layout_text, option
from rackline.api.resolve import calibration_of, layouts_of, precisions_of
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.api.option import CalibrationLike, LayoutLike
    from rackline.api.watch import Watch
    from rackline.arch import AnyModel
    from rackline.hardware import Cluster
    from rackline.parallel import Layout, Precision
    from rackline.passes import Calibration
    from rackline.pricing import PromptLengths, Rent, TokenCosts, Way
    from rackline.search.candidate import Candidate
    from rackline.serving.workload import Workload

MOST_MARGIN = 1000.0
CALIBRATION = option("object", "auto, trtllm, vllm, sglang, generic, unit (ideal roofline) or a TOML file")


class Sold(Protocol):
    """What a question says of the deployment that is sold."""

    @property
    def layout(self) -> LayoutLike | None: ...

    @property
    def precision(self) -> str: ...

    @property
    def calibration(self) -> CalibrationLike: ...


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
            usd_per_chip_hour=cluster.usd_per_chip_hour,
            power_w_per_chip=power,
            pue=pue,
            usd_per_kwh=usd_per_kwh,
            kind=cluster.rent,
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
    question: Sold,
    cluster: Cluster,
    model: AnyModel,
    request: Workload,
    watch: Watch,
    *,
    tpot_s: float | None = None,
    memory_fraction: float = 0.9,
) -> TokenCosts:
    """Costs of the deployment on which this request costs least, among the layouts that were left free.

    A plan finds the cheapest of each kind of layout; of these the one with the least bare cost of the request counts.

    Args:
        question: layout (the parts that are fixed), precision and calibration.
        request: lengths of the request.
        tpot_s: limit on time per output token; where no layout keeps it, it is left out [s].
        memory_fraction: share of the memory that the server may use.

    Raises:
        InputError: none fits.
    """
    from rackline.parallel import Deployment
    from rackline.pricing import TokenCosts
    from rackline.search import Constraints, SearchSpace, plan
    from rackline.serving.stack import stack_of

    numbers = calibration_of(question.calibration, cluster.chip)
    with watch.moving("searching for the cheapest deployment"):
        answer = plan(
            model,
            cluster,
            request,
            calibration=numbers,
            constraints=Constraints(memory_fraction=memory_fraction),
            prefill=None,
            served=False,
            search_space=SearchSpace(
                precisions=precisions_of([question.precision], model, cluster),
                layouts=layouts_of(layout_text(question.layout), model, cluster),
            ),
        )
    if answer.best is None:
        raise InputError(
            what="deployment", given=f"{model.name} on {cluster.name}", allowed=f"one that fits: {answer.reason}"
        )
    routing = stack_of(numbers, cluster.chip.hbm_bytes).routing
    found = [
        TokenCosts.of(
            Deployment(
                model=model,
                cluster=cluster,
                layout=one.layout,
                precision=one.precision,
                calibration=numbers,
                routing=routing,
            ),
            memory_fraction=memory_fraction,
        )
        for one in answer.ranked
    ]

    def least(limit: float | None) -> list[float]:
        return [float(one.request_chip_s(request.input_len, request.output_len, limit)[0]) for one in found]

    cost = least(tpot_s)
    if not min(cost) < float("inf"):
        cost = least(None)
    return found[cost.index(min(cost))]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedWays:
    """The cheapest single engine of a plan, searched anew for each tier and limit, with every slot taken all the time.

    Args:
        cluster: at the price of a chip-hour that counts.
        layouts: that are left free; None for all.
    """

    model: AnyModel
    cluster: Cluster
    calibration: Calibration
    precisions: Sequence[Precision] | None
    layouts: Sequence[Layout] | None
    memory_fraction: float

    def cheapest(self, lengths: PromptLengths, output_len: float, tpot_s: float | None) -> Way | str:
        """The cheapest that holds the longest prompt of the tier and, at the mean of its lengths, keeps the limit [s].

        Returns:
            The way, or why there is none.
        """
        from rackline.search import Constraints, SearchSpace, plan
        from rackline.serving.workload import Workload

        layouts = self._holding(lengths.until_len + output_len)
        if not layouts:
            return f"one sequence of {lengths.until_len + output_len:,.0f} tokens does not fit on any replica"
        if lengths.earned_at == "mean":
            # micro-batches of unequal prompts wait for each other, which a plan for one length does not see
            layouts = [layout for layout in layouts if layout.pp == 1] or layouts
        answer = plan(
            self.model,
            self.cluster,
            Workload(input_len=lengths.mean, output_len=max(output_len, 2.0)),
            calibration=self.calibration,
            constraints=Constraints(tpot_s=tpot_s, memory_fraction=self.memory_fraction),
            prefill=None,
            served=False,
            search_space=SearchSpace(precisions=self.precisions, layouts=layouts),
        )
        from rackline.search.candidate import Candidate

        if answer.aggregated is None or not isinstance(answer.aggregated.estimate, Candidate):
            return answer.reason
        return self._way(answer.aggregated.estimate, lengths, output_len, tpot_s)

    def _holding(self, context_len: float) -> list[Layout]:
        """Layouts of which a rank holds a sequence of this context, in one of the precisions."""
        import numpy as np

        from rackline.parallel import LayoutGrid, enumerate_layouts
        from rackline.parallel.memory import memory_use
        from rackline.search.space import default_precisions
        from rackline.serving.stack import stack_of

        chip = self.cluster.chip
        server = stack_of(self.calibration, chip.hbm_bytes).memory(None, self.memory_fraction)
        layouts = list(self.layouts) if self.layouts else enumerate_layouts(self.model, self.cluster.num_chips)
        grid = LayoutGrid.of(layouts)
        holds = np.zeros(len(layouts), dtype=bool)
        for one in self.precisions or default_precisions(self.model, chip):
            use = memory_use(self.model, grid, one, chip, server, sequences_per_rank=1.0, context_len=context_len)
            holds |= np.broadcast_to(np.asarray(use.free) >= 0, holds.shape)
        return [layout for layout, held in zip(layouts, holds, strict=True) if held]

    def _way(self, found: Candidate, lengths: PromptLengths, output_len: float, tpot_s: float | None) -> Way:
        from rackline.parallel import Deployment
        from rackline.pricing import TokenCosts, Way
        from rackline.pricing.ways import mean_prefill_chip_s, prefill_chip_s
        from rackline.search.candidate import price_per_chip_s
        from rackline.serving.stack import stack_of

        costs = TokenCosts.of(
            Deployment(
                model=self.model,
                cluster=self.cluster,
                layout=found.layout,
                precision=found.precision,
                calibration=self.calibration,
                routing=stack_of(self.calibration, self.cluster.chip.hbm_bytes).routing,
            ),
            found.mode,
            self.memory_fraction,
        )
        per_mtok = price_per_chip_s(self.cluster)[0] * 1e6
        spread = mean_prefill_chip_s(costs, lengths) / float(prefill_chip_s(costs, lengths.mean)[0])
        return Way(
            costs=costs,
            lengths=lengths,
            output_len=output_len,
            tpot_limit_s=tpot_s,
            scheduler=found.mode.label(),
            batch_size=float(found.batch_size),
            tpot_s=found.tpot_s,
            input_chip_s=spread * found.usd_per_mtok_input / per_mtok,
            output_chip_s=found.usd_per_mtok_output / per_mtok,
            used_share=found.num_chips / found.billed_chips,
        )

"""The cheapest deployments of a price sheet, searched for each tier of context and each mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rackline.parallel import Layout
from rackline.pricing.costs import PromptLengths, TokenCosts, Way, mean_prefill_chip_s, prefill_chip_s
from rackline.search.candidate import price_per_chip_s
from rackline.search.choice import Choice
from rackline.search.plan import contenders
from rackline.search.space import SearchSpace, Space
from rackline.serving.workload import Workload
from rackline.system import Constraints, Demand, Headroom, System


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedWays:
    """The cheapest engine or pools that a plan would estimate, searched anew for each tier and limit.

    Args:
        system: in one precision; its cluster at the price of a chip-hour that counts.
        layouts: that are left free; None for all.
        headroom: below the limits; None where predictions may reach them.
        ways: what was searched before, by tier and limit.
    """

    system: System
    layouts: Sequence[Layout] | None
    headroom: Headroom | None = None
    ways: dict[tuple[float, float, float, float | None], Way | str] = field(
        default_factory=dict[tuple[float, float, float, float | None], "Way | str"], compare=False
    )

    def cheapest(self, lengths: PromptLengths, output_len: float, tpot_s: float | None) -> Way | str:
        """Return the cheapest that holds the longest prompt of the tier and meets a limit [s] at the mean prompt.

        Returns:
            The way, or why there is none.
        """
        key = (lengths.from_len, lengths.until_len, output_len, tpot_s)
        if key not in self.ways:
            self.ways[key] = self._searched(lengths, output_len, tpot_s)
        return self.ways[key]

    def _searched(self, lengths: PromptLengths, output_len: float, tpot_s: float | None) -> Way | str:
        lengths_asked = (
            Workload(input_len=lengths.mean, output_len=max(output_len, 2.0))
            if lengths.known is None
            else Workload.of_mixture(lengths.known)
        )
        space = Space.of(self.system, lengths_asked, SearchSpace(layouts=self.layouts))
        longest = lengths.until_len + output_len
        fitting = np.flatnonzero(space.holds(self.system.precision, None, longest))
        layouts = [space.grid.layout(row) for row in fitting.tolist()]
        if not layouts:
            return f"one sequence of {longest:,.0f} tokens does not fit on any replica"
        if lengths.earned_at == "mean" and lengths.known is None:
            # micro-batches of unequal prompts wait for each other, which a plan for one length does not see
            layouts = [layout for layout in layouts if layout.pp == 1] or layouts
        searched = contenders(
            self.system,
            Demand(workload=lengths_asked, limits=Constraints(tpot_s=tpot_s, headroom=self.headroom)),
            SearchSpace(layouts=layouts),
            open_loop=tpot_s is not None,  # where nobody waits for an answer, every slot is always taken
        )
        best = searched.best
        return searched.engines.reason if best is None else self._way(best, lengths, output_len, tpot_s)

    def _way(self, choice: Choice, lengths: PromptLengths, output_len: float, tpot_s: float | None) -> Way:
        first = choice.prefill_pool
        costs = TokenCosts.of(self.system, choice.layout, choice.mode)
        prefill = None if first is None else TokenCosts.of(self.system, first.layout, first.mode)
        # the same rent over all output tokens, those of engines on chips that are left over included
        per_mtok = price_per_chip_s(self.system.cluster) * 1e6
        per_mtok *= choice.usd_per_mtok_output_all_in / choice.usd_with_leftover
        spread = 1.0  # of a mixture a plan counts the prompts as they are
        if lengths.known is None:
            prompts = prefill or costs
            spread = mean_prefill_chip_s(prompts, lengths) / float(prefill_chip_s(prompts, lengths.mean)[0])
        used = choice.num_chips + (choice.leftover.num_chips if choice.leftover else 0)
        return Way(
            costs=costs,
            prefill=prefill,
            lengths=lengths,
            output_len=output_len,
            tpot_limit_s=tpot_s,
            scheduler=choice.mode.label() if first is None else "prompts and outputs apart",
            batch_size=float(choice.batch_size),
            tpot_s=choice.tpot_s,
            input_chip_s=spread * choice.usd_per_mtok_input / per_mtok,
            output_chip_s=choice.usd_per_mtok_output / per_mtok,
            used_share=used / choice.billed_chips,
        )

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
        found: what was searched before, by tier and limit.
    """

    system: System
    layouts: Sequence[Layout] | None
    headroom: Headroom | None = None
    found: dict[tuple[float, float, float, float | None], Way | str] = field(
        default_factory=dict[tuple[float, float, float, float | None], "Way | str"], compare=False
    )

    def cheapest(self, lengths: PromptLengths, output_len: float, tpot_s: float | None) -> Way | str:
        """Return the cheapest that holds the longest prompt of the tier and meets a limit [s] at the mean prompt.

        Returns:
            The way, or why there is none.
        """
        key = (lengths.from_len, lengths.until_len, output_len, tpot_s)
        if key not in self.found:
            self.found[key] = self._searched(lengths, output_len, tpot_s)
        return self.found[key]

    def _searched(self, lengths: PromptLengths, output_len: float, tpot_s: float | None) -> Way | str:
        lengths_asked = (
            Workload(input_len=lengths.mean, output_len=max(output_len, 2.0))
            if lengths.known is None
            else Workload.of_mixture(lengths.known)
        )
        space, longest = (
            Space.of(self.system, lengths_asked, SearchSpace(layouts=self.layouts)),
            lengths.until_len,
        )
        holds = np.flatnonzero(space.holds(self.system.precision, None, longest + output_len))
        layouts = [space.grid.layout(row) for row in holds.tolist()]
        if not layouts:
            return f"one sequence of {longest + output_len:,.0f} tokens does not fit on any replica"
        if lengths.earned_at == "mean" and lengths.known is None:
            # micro-batches of unequal prompts wait for each other, which a plan for one length does not see
            layouts = [layout for layout in layouts if layout.pp == 1] or layouts
        found = contenders(
            self.system,
            Demand(workload=lengths_asked, limits=Constraints(tpot_s=tpot_s, headroom=self.headroom)),
            SearchSpace(layouts=layouts),
            open_loop=tpot_s is not None,  # where nobody waits for an answer, every slot is always taken
        )
        best = found.best
        return found.engines.reason if best is None else self._way(best, lengths, output_len, tpot_s)

    def _way(self, found: Choice, lengths: PromptLengths, output_len: float, tpot_s: float | None) -> Way:
        first = found.prefill_pool
        costs = TokenCosts.of(self.system, found.layout, found.mode)
        prefill = None if first is None else TokenCosts.of(self.system, first.layout, first.mode)
        # the same rent over all output tokens, those of engines on chips that are left over included
        per_mtok = price_per_chip_s(self.system.cluster) * 1e6
        per_mtok *= found.usd_per_mtok_output_all_in / found.usd_with_leftover
        spread = 1.0  # of a mixture a plan counts the prompts as they are
        if lengths.known is None:
            prompts = prefill or costs
            spread = mean_prefill_chip_s(prompts, lengths) / float(prefill_chip_s(prompts, lengths.mean)[0])
        used = found.num_chips + (found.leftover.num_chips if found.leftover else 0)
        return Way(
            costs=costs,
            prefill=prefill,
            lengths=lengths,
            output_len=output_len,
            tpot_limit_s=tpot_s,
            scheduler=found.mode.label() if first is None else "prompts and outputs apart",
            batch_size=float(found.batch_size),
            tpot_s=found.tpot_s,
            input_chip_s=spread * found.usd_per_mtok_input / per_mtok,
            output_chip_s=found.usd_per_mtok_output / per_mtok,
            used_share=used / found.billed_chips,
        )

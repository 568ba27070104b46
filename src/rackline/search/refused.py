"""Better layouts and pools that the launch rules of the engine alone keep from being the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rackline.search.candidate import Candidate, Pool, PoolPair
from rackline.search.choice import Choice
from rackline.search.engines import EngineSearch
from rackline.search.launch_rules import Role
from rackline.search.pools import PoolSearch, without_context
from rackline.search.select import Rejected
from rackline.search.space import PrefillPool, Space
from rackline.system import Constraints

_PAIRS = 3  # cheapest pairs among which one is refused by a rule


def better_refused(space: Space, limits: Constraints, best: Choice | None, *, open_loop: bool) -> Rejected | None:
    """The cheapest single engine that the engine's rules alone keep from being the answer; None without one.

    Args:
        space: with the rules, before `Space.launchable`.
        best: the cheapest that is launched; its precision and scheduler are considered, all without it.
        open_loop: by which estimate, as of the best.
    """
    rules = space.rules
    if rules is None:
        return None
    if best is not None:
        space = replace(space.in_precision(best.precision), modes=[best.mode])
    starts = np.logical_or.reduce([space.starting(mode) for mode in space.modes])
    if starts.all():
        return None
    free = replace(space, grid=space.grid.take(np.flatnonzero(~starts)), rules=None)
    if all(mode.two_batch_overlap for mode in free.modes) and not np.any(free.grid.attention_dp > 1):
        return None
    search = EngineSearch.through(free, limits, open_loop=open_loop)
    found = next(iter(search.answer().contenders), None)
    if found is None or not isinstance(found.estimate, Candidate):
        return None
    cost = found.usd_per_mtok_output_all_in
    if best is not None and not cost < best.estimate.usd_per_mtok_output_all_in:
        return None
    asked = space.asked(found.precision, found.mode, layout=found.layout)
    return Rejected(
        what=found.estimate.label(),
        reason=f"launch: {rules.refusal(asked)}",
        excess=0.0 if best is None else best.estimate.usd_per_mtok_output_all_in / cost - 1.0,
        candidate=found.estimate,
    )


def better_refused_pair(
    space: Space, limits: Constraints, prefill: PrefillPool, choices: Sequence[Choice]
) -> Rejected | None:
    """The cheapest pair of pools that the engine's rules alone keep from being the answer; None without one.

    Args:
        space: with the rules, before `Space.launchable`.
        prefill: what the prefill pool may be.
        choices: the cheapest of each kind that is launched; only the precision of the pair among them is searched, all
            without it.
    """
    pairs = [one for one in choices if one.serving == "disaggregated"]
    if pairs:
        space = space.in_precision(pairs[0].precision)
    if space.rules is None or space.in_pools(every=True).all():
        return None
    free = replace(space, rules=None)
    search = PoolSearch.of(free, limits, prefill.space(free))
    for part in free.parts():
        search.look_at(part)
    least = min((one.estimate.usd_per_mtok_output_all_in for one in choices), default=np.inf)
    for found in search.answer(_PAIRS).contenders:
        if not isinstance(found.estimate, PoolPair) or not found.usd_per_mtok_output_all_in < least:
            continue
        why = _pair_refusal(space, found.estimate, prefill)
        if why:
            return Rejected(
                what=found.estimate.label(),
                reason=f"launch: {why}",
                excess=0.0 if not choices else least / found.usd_per_mtok_output_all_in - 1.0,
                candidate=found.estimate,
            )
    return None


def _pair_refusal(space: Space, pair: PoolPair, prefill: PrefillPool) -> str:
    """Which rule keeps a pool from being launched; empty where none does."""
    sides: tuple[tuple[Role, Pool, Space], ...] = (
        ("prefill", pair.prefill, prefill.space(space)),
        ("decode", pair.decode, space),
    )
    for role, pool, own in sides:
        layout = without_context(pool.layout, own.system.model)
        asked = own.asked(pool.precision, pool.mode, role, pool.layout.cp, layout)
        why = space.rules.refusal(asked) if space.rules else ""
        if why:
            return f"{role} pool: {why}"
    return ""

"""The part of a search space that the engine supports, and better layouts that it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rackline.hardware import Cluster
from rackline.parallel import Layout, LayoutGrid
from rackline.passes.features import Array
from rackline.search.candidate import Candidate
from rackline.search.choice import Choice
from rackline.search.disaggregated import PoolSearch, without_context
from rackline.search.engines import EngineSearch
from rackline.search.evaluate import Space
from rackline.search.launch_rules import Asked, LaunchRules, Role
from rackline.search.pool_pair import Pool, PoolPair
from rackline.search.pool_space import PrefillPool, prefill_space
from rackline.search.rejected import Rejected
from rackline.serving.workload import Mode
from rackline.system import Constraints


def launchable(space: Space, options: list[Layout], *, pools: bool) -> tuple[Space, list[Layout]]:
    """The space without layouts that the engine cannot launch in any combination; unchanged if it launches none.

    Args:
        options: layouts of the space.
        pools: whether layouts that only a prefill or a decode pool may have are kept.
    """
    if space.rules is None:
        return space, options
    modes: list[Mode] = []
    kept = np.zeros(len(options), dtype=bool)
    for mode in space.modes:
        starts = np.logical_or.reduce([space.launches(one, mode) for one in space.precisions])
        if starts.any():
            modes.append(mode)
        kept |= starts
    if pools:
        kept |= _in_pools(space)
    if not modes or not kept.any():
        return space, options
    chosen = [options[row] for row in np.flatnonzero(kept)]
    return replace(space, modes=modes, grid=LayoutGrid.of(chosen)), chosen


def _in_pools(space: Space, *, every: bool = False) -> Array:
    """Layouts that start in one of the pools, or in both under every scheduler, shape (layouts,)."""
    found = np.full(len(space.grid), every)
    for one in space.precisions:
        for overlap in {mode.two_batch_overlap for mode in space.modes}:
            mode = replace(space.modes[0], two_batch_overlap=overlap)
            first, then = (space.launches(one, mode, role) for role in ("prefill", "decode"))
            found = found & first & then if every else found | first | then
    return found


def starts_nothing(space: Space) -> str:
    """Why the engine launches nothing in the space, in one line; empty if it launches something."""
    if space.rules is None:
        return ""
    if any(np.any(space.launches(one, mode)) for one in space.precisions for mode in space.modes):
        return ""
    asked = Asked(
        model=space.model,
        cluster=space.cluster,
        sharding=space.grid,
        precision=space.precisions[0],
        mode=space.modes[0],
        role="both",
    )
    says = [rule.says for _, rule, breaks in space.rules.broken(asked) if breaks.any()]
    return f"{space.rules.engine} {space.rules.version} launches none of these: {'; '.join(says)}"


def better_refused(
    space: Space, options: list[Layout], limits: Constraints, best: Choice | None, *, open_loop: bool
) -> Rejected | None:
    """The cheapest single engine that the engine's rules alone keep from being the answer; None without one.

    Args:
        space: with the rules, before `launchable`.
        options: its layouts.
        best: the cheapest that is launched; its precision and scheduler are considered, all without it.
        open_loop: by which estimate, as of the best.
    """
    rules = space.rules
    if rules is None:
        return None
    if best is not None:
        space = replace(space, system=replace(space.system, precisions=(best.precision,)), modes=[best.mode])
    starts = np.array([space.launches(one, mode) for one in space.precisions for mode in space.modes]).any(axis=0)
    rows = np.flatnonzero(~starts)
    if not rows.size:
        return None
    others = [options[row] for row in rows]
    free = replace(space, grid=LayoutGrid.of(others), rules=None)
    if all(mode.two_batch_overlap for mode in free.modes) and not np.any(free.grid.attention_dp > 1):
        return None
    search = EngineSearch.of(free, others, limits, open_loop=open_loop)
    for part in free.parts():
        search.look_at(part)
    found = next(iter(search.answer().contenders), None)
    if found is None or not isinstance(found.estimate, Candidate):
        return None
    if best is not None and not found.usd_per_mtok_output_all_in < best.estimate.usd_per_mtok_output_all_in:
        return None
    asked = Asked(
        model=space.model,
        cluster=space.cluster,
        sharding=found.layout,
        precision=found.precision,
        mode=found.mode,
        role="both",
    )
    gain = 0.0 if best is None else best.estimate.usd_per_mtok_output_all_in / found.usd_per_mtok_output_all_in - 1.0
    one = replace(found.layout, dp=1).label()
    return Rejected(
        what=f"{one} · {found.precision.short()} · {found.mode.label()} · batch {found.estimate.batch_size:.4g}",
        reason=f"launch: {rules.refusal(asked)}",
        excess=gain,
        candidate=found.estimate,
    )


def better_refused_pair(
    space: Space, options: list[Layout], limits: Constraints, prefill: PrefillPool, choices: Sequence[Choice]
) -> Rejected | None:
    """The cheapest pair of pools that the engine's rules alone keep from being the answer; None without one.

    Args:
        space: with the rules, before `launchable`.
        options: its layouts.
        prefill: what the prefill pool may be.
        choices: the cheapest of each kind that is launched; only the precision of the pair among them is searched, all
            without it.
    """
    rules = space.rules
    pairs = [one for one in choices if one.serving == "disaggregated"]
    if pairs:
        space = replace(space, system=replace(space.system, precisions=(pairs[0].precision,)))
    if rules is None or _in_pools(space, every=True).all():
        return None
    free = replace(space, rules=None)
    search = PoolSearch.of(free, options, limits, prefill_space(free, prefill))
    for part in free.parts():
        search.look_at(part)
    least = min((one.estimate.usd_per_mtok_output_all_in for one in choices), default=np.inf)
    for found in search.answer().contenders:
        if not isinstance(found.estimate, PoolPair) or not found.usd_per_mtok_output_all_in < least:
            continue
        why = _pair_refusal(space, rules, found.estimate, (prefill.system or space.system).cluster)
        if why:
            return Rejected(
                what=_pair_label(found.estimate),
                reason=f"launch: {why}",
                excess=0.0 if not choices else least / found.usd_per_mtok_output_all_in - 1.0,
                candidate=found.estimate,
            )
    return None


def _pair_refusal(space: Space, rules: LaunchRules, pair: PoolPair, prefill_cluster: Cluster) -> str:
    """Which rule keeps a pool from being launched; empty where none does."""
    sides: tuple[tuple[Role, Pool, Cluster], ...] = (
        ("prefill", pair.prefill, prefill_cluster),
        ("decode", pair.decode, space.cluster),
    )
    for role, pool, cluster in sides:
        asked = Asked(
            model=space.model,
            cluster=cluster,
            sharding=without_context(pool.layout, space.model),
            precision=pool.precision,
            mode=pool.mode,
            role=role,
            cp=pool.layout.cp,
        )
        why = rules.refusal(asked)
        if why:
            return f"{role} pool: {why}"
    return ""


def _pair_label(pair: PoolPair) -> str:
    first, then = (replace(pool.layout, dp=1).label() for pool in (pair.prefill, pair.decode))
    return f"prefill {first}, decode {then} · {pair.decode.precision.short()}"

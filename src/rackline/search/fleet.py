"""The fleet of a plan's cheapest deployment."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from rackline.hardware import Cluster
from rackline.search.choice import Choice
from rackline.search.plan import Plan
from rackline.serving.fleet import Fleet, Part, Traffic, fleet, fleet_of_users
from rackline.serving.open_loop import Population, Response


def plan_fleet(
    traffic: Traffic | None,
    answer: Plan,
    prefill_on: Cluster | None = None,
    users: Population | None = None,
    *,
    pue: float = 1.0,
) -> Fleet | None:
    """Copies of the cheapest deployment: one replica of an aggregated plan, or a pair of pools; None without an answer.

    With an engine on chips that are left free, a copy is as many replicas as share one such engine.

    Args:
        traffic: of the fleet; None where it was not asked for.
        prefill_on: cluster of the prefill pool where it has its own.
        users: where the traffic follows from them; then only its peak counts.
        pue: power of the site over that of the machines [1].
    """
    best = answer.best
    if best is None or traffic is None:
        return None
    parts, copies = _parts(best, answer.system.cluster, prefill_on)
    output_len = best.workload.output_len
    if users is not None:
        return fleet_of_users(users, traffic, output_len, _response(best, copies), parts, pue=pue)
    rate = best.requests_per_s_with_leftover / copies * output_len
    return replace(fleet(traffic, rate, parts, pue=pue), requests_per_s=traffic.tokens_per_s / output_len)


def _parts(best: Choice, cluster: Cluster, prefill_on: Cluster | None) -> tuple[tuple[Part, ...], int]:
    """Chips of one copy, and copies in the plan."""
    first, then, left, energy = best.prefill_pool, best.decode_pool, best.leftover, best.energy
    beside: Part | None = None
    if left is not None:
        layout = left.choice.layout
        count = layout.dp * left.places
        power = left.choice.energy and left.choice.energy.power
        size = layout.chips_per_replica
        beside = Part(cluster=cluster, replica_chips=size, replicas=count, beside=True, power=power)
    if first is not None and then is not None:
        decode = Part(
            cluster=cluster,
            replica_chips=then.layout.chips_per_replica,
            replicas=then.layout.dp,
            power=energy and energy.power,
        )
        prefill = Part(
            cluster=prefill_on or cluster,
            replica_chips=first.layout.chips_per_replica,
            replicas=first.layout.dp,
            power=energy and energy.prefill_power,
        )
        return (decode, prefill, *(() if beside is None else (beside,))), 1
    size, copies = best.layout.chips_per_replica, best.layout.dp
    if beside is None:
        return (Part(cluster=cluster, replica_chips=size, power=energy and energy.power),), copies
    together = gcd(copies, beside.replicas)
    shared = replace(beside, replicas=beside.replicas // together)
    engine = Part(cluster=cluster, replica_chips=size, replicas=copies // together, power=energy and energy.power)
    return (engine, shared), together


def _response(best: Choice, copies: int) -> Response:
    """How long a request takes on one copy."""
    steps = best.workload.output_len - 1.0
    loaded_s = best.ttft_s + steps * best.tpot_s
    alone_s = (
        loaded_s
        if best.sustained is None
        else best.sustained.alone_s["ttft_s"] + steps * best.sustained.alone_s["tpot_s"]
    )
    rate = best.requests_per_s_with_leftover / copies
    return Response(alone_s=min(alone_s, loaded_s), loaded_s=loaded_s, requests_per_s=rate)

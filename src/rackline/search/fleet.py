"""The fleet of a plan's cheapest deployment."""

from __future__ import annotations

from rackline.hardware import Cluster
from rackline.search.plan import Plan
from rackline.serving.fleet import Fleet, Part, Traffic, fleet


def plan_fleet(traffic: Traffic, answer: Plan, prefill_on: Cluster | None = None) -> Fleet | None:
    """Copies of the cheapest deployment: one replica of an aggregated plan, or a pair of pools; None without an answer.

    Args:
        prefill_on: cluster of the prefill pool where it has its own.
    """
    best = answer.best
    if best is None:
        return None
    first, then = best.prefill_pool, best.decode_pool
    if first is not None and then is not None:
        rate = best.output_tokens_per_s_per_chip * best.num_chips
        parts = (
            Part(
                cluster=answer.cluster,
                replica_chips=then.layout.chips_per_replica,
                replicas=then.layout.dp,
            ),
            Part(
                cluster=prefill_on or answer.cluster,
                replica_chips=first.layout.chips_per_replica,
                replicas=first.layout.dp,
            ),
        )
        return fleet(traffic, rate, parts)
    chips = best.layout.chips_per_replica
    return fleet(
        traffic, best.output_tokens_per_s_per_chip * chips, (Part(cluster=answer.cluster, replica_chips=chips),)
    )

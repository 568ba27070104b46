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
    pair, best = answer.pools, answer.best
    if pair is not None:
        rate = pair.output_tokens_per_s_per_chip * pair.num_chips
        parts = (
            Part(
                cluster=answer.cluster,
                replica_chips=pair.decode.layout.chips_per_replica,
                replicas=pair.decode.layout.dp,
            ),
            Part(
                cluster=prefill_on or answer.cluster,
                replica_chips=pair.prefill.layout.chips_per_replica,
                replicas=pair.prefill.layout.dp,
            ),
        )
        return fleet(traffic, rate, parts)
    if best is None:
        return None
    chips = best.layout.chips_per_replica
    return fleet(
        traffic, best.output_tokens_per_s_per_chip * chips, (Part(cluster=answer.cluster, replica_chips=chips),)
    )

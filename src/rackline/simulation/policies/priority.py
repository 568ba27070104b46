"""Chunked prefill with tiers: a lower number is more urgent (a fast mode), and the least urgent is preempted first."""

from rackline.simulation.policies.base import Policy, Waiting


def tier(requests: Waiting, request: int) -> float:
    """The tier of a request; a lower one is more urgent."""
    return float(requests.is_urgent(request))


POLICY = Policy(name="priority", order=tier, preempts_last_of_order=True, source="vLLM --scheduling-policy priority")

"""Chunked prefill with priority tiers: lower numbers are more urgent, and the least urgent is preempted first."""

from rackline.simulation.policies import Policy
from rackline.simulation.requests import RequestLog


def tier(requests: RequestLog, request: int) -> float:
    """Priority tier of a request; a lower one is more urgent."""
    return float(requests.is_urgent(request))


POLICY = Policy(name="priority", order=tier, preempts_last_of_order=True, source="vLLM --scheduling-policy priority")

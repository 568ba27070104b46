"""Each replica in turn.

Source: the default of nginx, of vLLM's production-stack (vllm-project/production-stack, routing_logic.py) and of most
load balancers.
"""

from rackline.simulation.requests import Requests
from rackline.simulation.routers import Router, Standing


class RoundRobin(Router):
    """In turn."""

    def __init__(self, requests: Requests) -> None:
        super().__init__(requests)
        self.turn = 0

    def choose(self, request: int, standing: Standing) -> int:
        """The next."""
        self.turn += 1
        return (self.turn - 1) % len(standing.replicas)


ROUTER = RoundRobin

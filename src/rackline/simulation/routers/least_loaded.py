"""The replica with the fewest requests, running and waiting; the first of equal ones.

Source: join the shortest queue (Haight 1958, "Two queues in parallel", Biometrika 45); least_conn of nginx.
"""

from rackline.simulation.routers import Router, Standing


class LeastLoaded(Router):
    """The fewest requests."""

    def choose(self, request: int, standing: Standing) -> int:
        """The first of those with the fewest."""
        return standing.least()


ROUTER = LeastLoaded

"""At most a number of requests in flight, running and waiting, for each replica.

Sources: the limit of concurrency that providers answer with 429 (docs.coreweave.com/support/inference/articles/
api-error-code-429-concurrency-limit-rea, read 2026-11-25); 100 is the capacity of llm-d's concurrency-detector
(llm-d/llm-d-router @ ebab6879, pkg/epp/framework/plugins/flowcontrol/saturationdetector/concurrency).
"""

from rackline.simulation.admissions import Admission
from rackline.simulation.routers import Standing


class Concurrency(Admission):
    """A limit on requests in flight."""

    usual = 100.0

    def admits(self, standing: Standing, *, urgent: bool) -> bool:
        """Whether there is room for one more."""
        return sum(standing.loads) < (self.limit or 0.0) * len(standing.replicas)


ADMISSION = Concurrency

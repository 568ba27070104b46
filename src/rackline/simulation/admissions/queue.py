"""At most a number of requests waiting for each replica.

Source: SGLang --max-queued-requests (sgl-project/sglang pull request 7565, off by default, answered with 503). There
the limit is that of the scheduler that a request was sent to; here of all together. With priorities SGLang drops a less
urgent waiting request instead (8746), which is not modelled.
"""

from rackline.simulation.admissions import Admission
from rackline.simulation.routers import Standing


class Queue(Admission):
    """A limit on waiting requests."""

    def admits(self, standing: Standing, *, urgent: bool) -> bool:
        """Whether the queues have room for one more."""
        return sum(standing.queued) < (self.limit or 0.0) * len(standing.replicas)


ADMISSION = Queue

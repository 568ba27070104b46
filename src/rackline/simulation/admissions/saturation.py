"""Less urgent requests are refused while the pool is saturated; urgent ones never.

Source: llm-d/llm-d-router @ ebab6879, pkg/epp/flowcontrol (429 at the ceiling of saturation, 1.0; requests of a
priority below 0 are sheddable) without its queue, in which requests wait for up to 60 s.
"""

from rackline.simulation.admissions import Admission, saturation_of
from rackline.simulation.routers import Standing


class Saturation(Admission):
    """A ceiling on saturation."""

    usual = 1.0
    for_less_urgent = True

    def admits(self, standing: Standing, *, urgent: bool) -> bool:
        """Whether it is urgent, or the pool below the ceiling."""
        return urgent or saturation_of(standing) < (self.limit or 0.0)


ADMISSION = Saturation

"""Less urgent requests are refused with a probability of min(1, 300 · saturation^5); urgent ones never.

Source: llm-d/llm-d-router @ ebab6879, pkg/epp/framework/plugins/requestcontrol/admitter/probabilisticadmitter, read
2026-11-23. All are refused from a saturation of 0.32 on.
"""

from rackline.simulation.admissions import Admission, saturation_of
from rackline.simulation.routers import Standing

FACTOR, POWER = 300.0, 5.0


class Probabilistic(Admission):
    """A probability of refusal that rises with the saturation."""

    has_limit = False
    for_less_urgent = True

    def admits(self, standing: Standing, *, urgent: bool) -> bool:
        """Whether it is urgent, or the draw is above the probability."""
        return urgent or float(self.rng.random()) >= FACTOR * saturation_of(standing) ** POWER


ADMISSION = Probabilistic

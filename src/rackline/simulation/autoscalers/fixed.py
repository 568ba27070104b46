"""No autoscaling: the replicas of the start."""

from rackline.simulation.autoscalers import Autoscaler, Seen, Setting


class Fixed(Autoscaler):
    """As many replicas as at the start."""

    interval_s = 60.0

    def __init__(self, setting: Setting) -> None:
        self.begin = setting.begin

    def wish(self, seen: Seen) -> int:
        """The replicas of the start."""
        return self.begin


AUTOSCALER = Fixed

"""A machine and an engine on it, measured: device, rates, a few passes, the fit, and points that were not fitted."""

from rackline.lab.measurement.engine import Engine, MeasureSetup, Work
from rackline.lab.measurement.measured import Measured, measure_machine

__all__ = ["Engine", "MeasureSetup", "Measured", "Work", "measure_machine"]

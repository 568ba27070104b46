"""The core: features, pass tables, the line that times them, collectives and calibrations."""

from rackline.passes.breakdown import PassTime, RowTime
from rackline.passes.calibration import UNIT, Calibration, OperationCalibration, StepPolicy
from rackline.passes.fallback import calibration, calibration_on
from rackline.passes.features import Batch
from rackline.passes.routing import ExpertLoad, RoutingLaw
from rackline.passes.row import Row
from rackline.passes.table import PassTable, TimeTable

__all__ = [
    "UNIT",
    "Batch",
    "Calibration",
    "ExpertLoad",
    "OperationCalibration",
    "PassTable",
    "PassTime",
    "RoutingLaw",
    "Row",
    "RowTime",
    "StepPolicy",
    "TimeTable",
    "calibration",
    "calibration_on",
]

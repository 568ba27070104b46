"""What serves, and what is asked of it: everything about a deployment but its layout, put together once."""

from rackline.system.demand import Constraints, Demand, Objective
from rackline.system.system import System, default_precisions

__all__ = ["Constraints", "Demand", "Objective", "System", "default_precisions"]

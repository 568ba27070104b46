"""What serves, and what is asked of it: everything about a deployment but its layout, put together once."""

from rackline.system.system import Constraints, Demand, Headroom, LimitRisk, Objective, Risk, System, default_precisions

__all__ = ["Constraints", "Demand", "Headroom", "LimitRisk", "Objective", "Risk", "System", "default_precisions"]

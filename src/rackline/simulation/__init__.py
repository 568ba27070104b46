"""Discrete-event simulation of serving: requests, scheduling policies, paged KV, replicas, metrics."""

from rackline.simulation.classes import Slo
from rackline.simulation.clock import Clock, PlainClock, TableClock
from rackline.simulation.metrics import Result
from rackline.simulation.policies import POLICIES, Policy
from rackline.simulation.prefix_cache import CacheRules, TierSpec
from rackline.simulation.requests import Requests
from rackline.simulation.routers import ROUTERS
from rackline.simulation.run import simulate
from rackline.simulation.server import CacheConfig, Handover, Pool, RankSpec, pool_of
from rackline.simulation.statistics import percentiles
from rackline.simulation.traces import read_trace
from rackline.simulation.workloads import Lengths, Sessions, closed_loop_of, diurnal, gamma, open_arrivals, poisson

__all__ = [
    "POLICIES",
    "ROUTERS",
    "CacheConfig",
    "CacheRules",
    "Clock",
    "Handover",
    "Lengths",
    "PlainClock",
    "Policy",
    "Pool",
    "RankSpec",
    "Requests",
    "Result",
    "Sessions",
    "Slo",
    "TableClock",
    "TierSpec",
    "closed_loop_of",
    "diurnal",
    "gamma",
    "open_arrivals",
    "percentiles",
    "poisson",
    "pool_of",
    "read_trace",
    "simulate",
]

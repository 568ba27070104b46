"""Discrete-event simulation of serving: requests, scheduling policies, paged KV, replicas, metrics."""

from rackline.simulate.arrivals import diurnal, gamma, poisson
from rackline.simulate.clock import Clock, PlainClock, TableClock
from rackline.simulate.metrics import Result, Slo, percentiles
from rackline.simulate.policies import Policy, policy, policy_names
from rackline.simulate.prefix_cache import TierSpec
from rackline.simulate.rank_spec import RankSpec
from rackline.simulate.requests import Requests
from rackline.simulate.router import ROUTERS
from rackline.simulate.run import Handover, Pool, simulate
from rackline.simulate.server import KvSize, kv_room_bytes, kv_size, pool_of
from rackline.simulate.traces import read_trace
from rackline.simulate.workloads import Lengths, closed_loop_of, conversations, open_arrivals

__all__ = [
    "ROUTERS",
    "Clock",
    "Handover",
    "KvSize",
    "Lengths",
    "PlainClock",
    "Policy",
    "Pool",
    "RankSpec",
    "Requests",
    "Result",
    "Slo",
    "TableClock",
    "TierSpec",
    "closed_loop_of",
    "conversations",
    "diurnal",
    "gamma",
    "kv_room_bytes",
    "kv_size",
    "open_arrivals",
    "percentiles",
    "poisson",
    "policy",
    "policy_names",
    "pool_of",
    "read_trace",
    "simulate",
]

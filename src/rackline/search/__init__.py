"""Search over layouts, precisions, modes and batches under constraints."""

from rackline.search.candidate import Basis, Candidate, Pool, PoolPair
from rackline.search.choice import Choice, Inside, Serving
from rackline.search.plan import Contenders, Plan, Tried, WhatIfPoint, contenders, least_energy, plan
from rackline.search.points import pareto_front
from rackline.search.pools import Disaggregated
from rackline.search.single_engines import Rejected
from rackline.search.space import BATCH_GRID, PrefillPool, SearchSpace, default_modes

__all__ = [
    "BATCH_GRID",
    "Basis",
    "Candidate",
    "Choice",
    "Contenders",
    "Disaggregated",
    "Inside",
    "Plan",
    "Pool",
    "PoolPair",
    "PrefillPool",
    "Rejected",
    "SearchSpace",
    "Serving",
    "Tried",
    "WhatIfPoint",
    "contenders",
    "default_modes",
    "least_energy",
    "pareto_front",
    "plan",
]

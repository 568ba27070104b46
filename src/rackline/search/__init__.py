"""Search over layouts, precisions, modes and batches under constraints."""

from rackline.search.candidate import Basis, Candidate
from rackline.search.choice import Choice, Inside, Serving
from rackline.search.disaggregated import Disaggregated
from rackline.search.pareto import pareto_front
from rackline.search.plan import Plan, plan
from rackline.search.pool_pair import Pool, PoolPair
from rackline.search.pool_space import PrefillPool
from rackline.search.rejected import Rejected
from rackline.search.space import BATCH_GRID, SearchSpace, default_modes

__all__ = [
    "BATCH_GRID",
    "Basis",
    "Candidate",
    "Choice",
    "Disaggregated",
    "Inside",
    "Plan",
    "Pool",
    "PoolPair",
    "PrefillPool",
    "Rejected",
    "SearchSpace",
    "Serving",
    "default_modes",
    "pareto_front",
    "plan",
]

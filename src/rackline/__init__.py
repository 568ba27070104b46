"""rackline predicts what it takes to train and serve a large language model, from first principles.

    import rackline as rl
    rack = rl.cluster("gb200-nvl72")
    answer = rl.plan(rl.model("deepseek-v3"), rack, rl.Workload(input_len=4000, output_len=1000),
                     calibration=rl.calibration("auto", rack.chip),
                     constraints=rl.Constraints(tpot_s=0.03, ttft_s=2.0))

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rackline.arch import model as model
    from rackline.errors import RacklineError as RacklineError
    from rackline.hardware import chip as chip
    from rackline.hardware import cluster as cluster
    from rackline.hardware import memory_tier as memory_tier
    from rackline.parallel import Deployment as Deployment
    from rackline.parallel import Layout as Layout
    from rackline.parallel import Routing as Routing
    from rackline.parallel import parse_layout as parse_layout
    from rackline.parallel import precision as precision
    from rackline.passes import Batch as Batch
    from rackline.passes import calibration as calibration
    from rackline.pricing import offer_prices as offer_prices
    from rackline.pricing import price_sheet as price_sheet
    from rackline.pricing import read_prices as read_prices
    from rackline.search import Constraints as Constraints
    from rackline.search import plan as plan
    from rackline.serving import Mode as Mode
    from rackline.serving import Workload as Workload
    from rackline.serving import capacity as capacity

_WHERE = {
    "model": "rackline.arch",
    "RacklineError": "rackline.errors",
    "chip": "rackline.hardware",
    "cluster": "rackline.hardware",
    "Deployment": "rackline.parallel",
    "Layout": "rackline.parallel",
    "Routing": "rackline.parallel",
    "parse_layout": "rackline.parallel",
    "precision": "rackline.parallel",
    "Batch": "rackline.passes",
    "calibration": "rackline.passes",
    "memory_tier": "rackline.hardware",
    "offer_prices": "rackline.pricing",
    "price_sheet": "rackline.pricing",
    "read_prices": "rackline.pricing",
    "Constraints": "rackline.search",
    "plan": "rackline.search",
    "Mode": "rackline.serving",
    "Workload": "rackline.serving",
    "capacity": "rackline.serving",
}
__all__ = sorted(_WHERE)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'rackline' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])

"""rackline predicts what it takes to train and serve a large language model, from first principles.

    import rackline as rl
    rl.plan("llama-3.1-70b", on="dgx-h100", input="2k", output=500, tpot="50ms")
    rl.explain("llama-3.1-70b", on="dgx-h100", batch=64, context="8k", layout="tp=8").to_frame()

Each question of the command line is a function here: its options are keywords, its quantities SI numbers or texts with
a unit, names may be objects. Answers print in a line, show tables in notebooks, and have `to_frame`, `to_dict` and
`plot`. Names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rackline.api.verbs import MODULES, function_name

if TYPE_CHECKING:
    from rackline.api.answer import Answer as Answer
    from rackline.api.answer import answer as answer
    from rackline.api.ask import ask as ask
    from rackline.api.budget import budget as budget
    from rackline.api.calibrate import calibrate as calibrate
    from rackline.api.catalogue import chips as chips
    from rackline.api.catalogue import clusters as clusters
    from rackline.api.catalogue import memory as memory
    from rackline.api.compare import compare as compare
    from rackline.api.encode import encode as encode
    from rackline.api.explain import explain as explain
    from rackline.api.fit import fit as fit
    from rackline.api.infer_prices import infer_prices as infer_prices
    from rackline.api.lab import experiment as experiment
    from rackline.api.lecture import lecture as lecture
    from rackline.api.measure import measure as measure
    from rackline.api.models import models as models
    from rackline.api.new import new as new
    from rackline.api.observe import observe as observe
    from rackline.api.plan import plan as plan
    from rackline.api.price import price as price
    from rackline.api.rl import rl as rl
    from rackline.api.schema import schema as schema
    from rackline.api.simulate import simulate as simulate
    from rackline.api.tiers import tiers as tiers
    from rackline.api.train import train as train
    from rackline.api.validate import validate as validate
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
    from rackline.serving import Mode as Mode
    from rackline.serving import Workload as Workload
    from rackline.serving import capacity as capacity
    from rackline.sweeps.show import sweep_show as sweep_show
    from rackline.sweeps.sweep import sweep as sweep
    from rackline.system import Constraints as Constraints
    from rackline.system import Demand as Demand
    from rackline.system import System as System

_WHERE = {
    "Answer": "rackline.api.answer",
    "Batch": "rackline.passes",
    "Constraints": "rackline.system",
    "Demand": "rackline.system",
    "Deployment": "rackline.parallel",
    "Layout": "rackline.parallel",
    "Mode": "rackline.serving",
    "RacklineError": "rackline.errors",
    "Routing": "rackline.parallel",
    "System": "rackline.system",
    "Workload": "rackline.serving",
    "answer": "rackline.api.answer",
    "calibration": "rackline.passes",
    "capacity": "rackline.serving",
    "chip": "rackline.hardware",
    "cluster": "rackline.hardware",
    "memory_tier": "rackline.hardware",
    "model": "rackline.arch",
    "offer_prices": "rackline.pricing",
    "parse_layout": "rackline.parallel",
    "precision": "rackline.parallel",
    "price_sheet": "rackline.pricing",
    "read_prices": "rackline.pricing",
    **{function_name(name): f"rackline.{module}" for name, module in MODULES.items()},
}
__all__ = sorted(_WHERE)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'rackline' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return __all__

# Written by bench/public_names.py; do not edit.
from rackline.api.afford import afford as afford
from rackline.api.answer import Answer as Answer, answer as answer
from rackline.api.ask import ask as ask
from rackline.api.audit import audit as audit
from rackline.api.budget import budget as budget
from rackline.api.calibrate import calibrate as calibrate
from rackline.api.catalogue import chips as chips, clusters as clusters, memory as memory, new as new
from rackline.api.compare import compare as compare
from rackline.api.diagnose import diagnose as diagnose
from rackline.api.encode import encode as encode
from rackline.api.explain import explain as explain
from rackline.api.fit import fit as fit
from rackline.api.infer_prices import infer_prices as infer_prices
from rackline.api.lecture import experiment as experiment, lecture as lecture
from rackline.api.measure import measure as measure
from rackline.api.models import models as models
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
from rackline.hardware import chip as chip, cluster as cluster, memory_tier as memory_tier
from rackline.parallel import (
    Deployment as Deployment,
    Layout as Layout,
    Routing as Routing,
    parse_layout as parse_layout,
    precision as precision,
)
from rackline.passes import Batch as Batch, calibration as calibration
from rackline.pricing import offer_prices as offer_prices, price_sheet as price_sheet, read_prices as read_prices
from rackline.serving import Mode as Mode, Workload as Workload, capacity as capacity
from rackline.sweeps.show import sweep_show as sweep_show
from rackline.sweeps.sweep import sweep as sweep
from rackline.system import Constraints as Constraints, Demand as Demand, System as System

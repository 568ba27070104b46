"""Live servers observed: a load of requests is sent, and what comes back is recorded token by token.

Nothing here needs JAX. The HTTP client is the one that huggingface_hub brings, on asyncio.
"""

from rackline.lab.observation.bounds import Bounds
from rackline.lab.observation.generator import observe_load
from rackline.lab.observation.prompts import Prompts
from rackline.lab.observation.target import Target, target

__all__ = ["Bounds", "Prompts", "Target", "observe_load", "target"]

"""Live servers observed: a load of requests is sent, and what comes back is recorded token by token.

Nothing here needs JAX. The HTTP client is the one that huggingface_hub brings, on asyncio.
"""

from rackline.lab.observation.generator import Prompts, observe_load
from rackline.lab.observation.stream import Bounds, Target, target

__all__ = ["Bounds", "Prompts", "Target", "observe_load", "target"]

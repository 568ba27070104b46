"""SGLang's gateway, cache_aware: the replica with the longest cached prefix, while loads are in balance.

    max load - min load > 32 and max load > 1.1 · min load: the fewest requests
    else matched / prompt > 0.5: the longest match; else the fewest requests

Source: sgl-project/sglang, sgl-model-gateway/src/policies/mod.rs (defaults of CacheAwareConfig) and cache_aware.rs,
read 2026-11-23. The gateway matches characters in a tree of its own, of what it sent where; here what is in the caches
counts.
"""

from rackline.simulation.prefix_cache import matched
from rackline.simulation.routers import Router, Standing


class PrefixAware(Router):
    """The longest prefix in balance."""

    follows_prefixes = True

    def choose(self, request: int, standing: Standing) -> int:
        """The longest match, else the fewest requests."""
        hashes = self.requests.hashes
        if hashes is None:
            return standing.least()
        unit = self.requests.hash_tokens
        known = [tokens // unit for tokens in standing.known(request)]
        place = matched(known, standing.loads, len(hashes[request]))
        return standing.least() if place is None else place


ROUTER = PrefixAware

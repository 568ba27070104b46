"""llm-d's inference scheduler with its default scorers: the highest weighted sum.

    score = 2 · queue + 2 · (1 - kv) + 3 · prefix
    queue = (max waiting - waiting) / (max waiting - min waiting), 1 where all are equal
    kv = share of the KV blocks in use
    prefix = matched blocks / blocks of the prompt

Source: llm-d/llm-d-router @ ebab6879, pkg/epp/config/loader/defaults.go (weights) and
pkg/epp/framework/plugins/scheduling/scorer/{queuedepth,kvcacheutilization,prefix}, read 2026-11-23. Among equal scores
the scheduler draws; here the replica with the fewest requests is taken. Its metrics are up to 50 ms old; here they are
those of the last pass that began.
"""

from rackline.simulation.routers import Router, Standing

WEIGHTS = {"queue": 2.0, "kv": 2.0, "prefix": 3.0}


class LlmD(Router):
    """The highest score."""

    follows_prefixes = True

    def choose(self, request: int, standing: Standing) -> int:
        """The highest score, of equal ones the fewest requests."""
        queued, loads, hashes = standing.queued, standing.loads, self.requests.hashes
        # what a replica lacks of the highest score: a sum as well, and quicker
        span = max(queued) - min(queued)
        each, block = WEIGHTS["queue"] / span if span else 0.0, WEIGHTS["kv"] / standing.room
        lacks = [each * waiting + block * used for waiting, used in zip(queued, standing.blocks, strict=True)]
        if hashes is not None:
            token = WEIGHTS["prefix"] / (max(len(hashes[request]), 1) * self.requests.hash_tokens)
            lacks = [lack - token * known for lack, known in zip(lacks, standing.known(request), strict=True)]
        least = min(lacks)
        first = lacks.index(least)
        if lacks.count(least) == 1:
            return first
        return min((place for place, lack in enumerate(lacks) if lack == least), key=loads.__getitem__)


ROUTER = LlmD

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
        queued, loads = standing.queued, standing.loads
        most, span = max(queued), max(queued) - min(queued)
        hashes = self.requests.hashes
        prompt = max(len(hashes[request]), 1) * self.requests.hash_tokens if hashes is not None else 1
        known = standing.known(request)
        scores = [
            WEIGHTS["queue"] * ((most - waiting) / span if span else 1.0)
            + WEIGHTS["kv"] * (1.0 - use)
            + WEIGHTS["prefix"] * (tokens / prompt)
            for waiting, use, tokens in zip(queued, standing.kv_use, known, strict=True)
        ]
        return max(range(len(scores)), key=lambda place: (scores[place], -loads[place]))


ROUTER = LlmD

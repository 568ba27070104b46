"""NVIDIA Dynamo's KV router: the lowest cost in blocks.

    cost = max(0, active prefill + prompt - credit) + decode
    active prefill = prompts that it sent there and that have no first token yet, without what was cached of them
    credit = tokens of the prompt in the cache of the replica, weight 1
    decode = tokens in KV blocks there, with the prompts that wait

all over the tokens of a block, which changes no order; temperature 0.

Source: ai-dynamo/dynamo, docs/components/router/router-concepts.md and router-configuration.md (scale 1, credit of the
device 1.0, temperature 0; the queue is off), read 2026-11-23. Credits for tiers behind HBM (0.75, 0.25) are taken as 1.
"""

from collections.abc import MutableMapping
from weakref import WeakKeyDictionary

from rackline.simulation.requests import Requests
from rackline.simulation.routers import Router, Standing


class DynamoKv(Router):
    """The lowest cost."""

    follows_prefixes = True

    def __init__(self, requests: Requests) -> None:
        super().__init__(requests)
        self.sent: MutableMapping[object, dict[int, int]] = WeakKeyDictionary()  # replica → request → tokens to compute

    def choose(self, request: int, standing: Standing) -> int:
        """The lowest cost, of equal ones the fewest requests."""
        log, lengths = standing.log, self.requests.input_len
        prompt, loads = int(lengths[request]), standing.loads
        costs: list[float] = []
        known = standing.known(request)
        for place, replica in enumerate(standing.replicas):
            books = self.sent.setdefault(replica, {})
            for one in [one for one in books if _is_there(log.first_s[one])]:
                del books[one]
            waiting = sum(int(lengths[one]) for one in books if not _is_there(log.admitted_s[one]))
            active = sum(books.values()) + prompt - known[place]
            costs.append(max(active, 0) + standing.blocks[place] * standing.block_size + waiting)
        found = min(range(len(costs)), key=lambda place: (costs[place], loads[place]))
        self.sent[standing.replicas[found]][request] = prompt - known[found]
        return found


def _is_there(time_s: float | None) -> bool:
    """Whether a time is known: neither None nor NaN."""
    return time_s is not None and time_s == time_s


ROUTER = DynamoKv

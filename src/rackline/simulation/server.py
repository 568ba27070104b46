"""A server as it is simulated: pools of replicas, limits of their ranks, queues, KV blocks and adapters in memory.

`pool_of` makes the pool of a deployment under a serving stack.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import floor, inf

from rackline.arch import Model
from rackline.errors import require
from rackline.hardware.chip import host_bytes_per_s
from rackline.parallel import Deployment
from rackline.parallel.memory import kv_room_bytes, kv_size
from rackline.parallel.work import adapter_bytes
from rackline.passes.features import as_array
from rackline.serving.stack import IDEAL, Stack
from rackline.serving.workload import PLAIN, Speculation
from rackline.simulation.clock import Chunk, Clock, TableClock
from rackline.simulation.policies import POLICIES, Policy, Reserve
from rackline.simulation.prefix_cache import CacheRules, TierSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRoom:
    """How a rank keeps blocks of the KV cache.

    Args:
        block_size: tokens per KV block [tokens].
        reserve: cache that must be free for admission; None for the policy's own.
        prefix_caching: whether prompt blocks are kept by hash.
        hash_tokens: tokens per hashed block [tokens].
        tiers: tiers behind HBM for hashed blocks.
        cache_rules: eviction and expiry of hashed blocks.
    """

    block_size: int = 16
    reserve: Reserve | None = None
    prefix_caching: bool = False
    hash_tokens: int = 512
    tiers: tuple[TierSpec, ...] = ()
    cache_rules: CacheRules = field(default_factory=CacheRules)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec(CacheRoom):
    """Limits of one rank.

    Args:
        pool_tokens: KV cache capacity [tokens].
        fixed_tokens: cache that a sequence takes at any length (windows, recurrent state), in tokens [tokens].
        grows: whether the cache of a sequence grows with each token in addition.
        max_num_seqs: running sequences at most [sequences].
        max_batched_tokens: token budget of a pass [tokens].
        swap_tokens_per_s: rate at which preempted sequences are swapped to the host and back; 0 recomputes them
            [tokens/s].
        adapters: room for low-rank adapters, where requests use several; None else.
        neighbour_passes: whether only sequences of neighbouring slots share a pass.
    """

    pool_tokens: int
    fixed_tokens: int = 0
    grows: bool = True
    max_num_seqs: int = 256
    max_batched_tokens: int = 8192
    swap_tokens_per_s: float = 0.0
    adapters: AdapterSlots | None = None
    neighbour_passes: bool = False

    def __post_init__(self) -> None:
        for name in ("pool_tokens", "block_size", "max_num_seqs", "max_batched_tokens", "hash_tokens"):
            require(getattr(self, name) >= 1, what=name, given=getattr(self, name), allowed="at least 1", nearest="1")
        require(
            self.grows or self.reserve == "final",
            what="reserve",
            given=self.reserve,
            allowed="final, as the cache has a fixed size",
        )
        require(
            not (self.prefix_caching and self.hash_tokens % self.block_size),
            what="hash_tokens",
            given=self.hash_tokens,
            allowed=f"a multiple of the block size {self.block_size}",
        )

    @property
    def num_blocks(self) -> int:
        """KV blocks of the pool [count]."""
        return self.pool_tokens // self.block_size

    def blocks_of(self, tokens: int) -> int:
        """KV blocks of one sequence [count]."""
        return (-(-tokens // self.block_size) if self.grows else 0) - (-self.fixed_tokens // self.block_size)


def token_clock(steps: int, tokens_per_step: float) -> int:
    """Whole tokens that a sequence has gained after `steps` steps, at the mean rate over many steps [tokens]."""
    return steps if tokens_per_step == 1.0 else floor(steps * tokens_per_step + 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSlots:
    """Room for adapters on a rank.

    Args:
        slots: adapters in memory at a time [count].
        load_s: transfer of one from the memory of the host [s].
    """

    slots: int
    load_s: float

    def __post_init__(self) -> None:
        require(self.slots >= 1, what="resident adapters", given=self.slots, allowed="at least 1", nearest="1")


class ResidentAdapters:
    """Adapters in memory; of those that no running request uses, the one least recently used makes room."""

    __slots__ = ("idle", "loads", "spec", "users")

    def __init__(self, spec: AdapterSlots) -> None:
        self.spec = spec
        self.users: dict[int, int] = {}  # adapter in use → running requests that use it
        self.idle: dict[int, None] = {}  # adapters in memory that nobody uses, the least recently used first
        self.loads = 0

    def has_room(self, adapter: int) -> bool:
        """Whether a request with this adapter can start: it is in memory, or another one can leave."""
        return adapter in self.users or len(self.users) < self.spec.slots

    def use(self, adapter: int) -> float:
        """A request with this adapter starts; returns the time of its transfer, 0 if it is in memory [s]."""
        if adapter in self.users:
            self.users[adapter] += 1
            return 0.0
        self.users[adapter] = 1
        if adapter in self.idle:
            del self.idle[adapter]
            return 0.0
        if len(self.users) + len(self.idle) > self.spec.slots:
            del self.idle[next(iter(self.idle))]
        self.loads += 1
        return self.spec.load_s

    def release(self, adapter: int) -> None:
        """A request with this adapter ends or is preempted."""
        self.users[adapter] -= 1
        if not self.users[adapter]:
            del self.users[adapter]
            self.idle[adapter] = None


class ArrivalOrder(deque[int]):
    """Requests waiting to be admitted, in the order of arrival."""

    __slots__ = ()

    def add(self, request: int, arrival_s: float) -> None:
        """Add a request."""
        self.append(request)

    def put_back(self, request: int, arrival_s: float) -> None:
        """Put a preempted request at the front."""
        self.appendleft(request)

    def first(self) -> int:
        """The next request."""
        return self[0]

    def remove_first(self) -> None:
        """Remove the next request."""
        self.popleft()


class KeyOrder(list[tuple[float, float, int]]):
    """Requests waiting to be admitted, smallest key first, then in the order of arrival.

    Args:
        key: function from a request to its key.
    """

    __slots__ = ("key",)

    def __init__(self, key: Callable[[int], float]) -> None:
        super().__init__()
        self.key = key

    def add(self, request: int, arrival_s: float) -> None:
        """Add a request."""
        heapq.heappush(self, (self.key(request), arrival_s, request))

    put_back = add

    def first(self) -> int:
        """The next request."""
        return self[0][2]

    def remove_first(self) -> None:
        """Remove the next request."""
        heapq.heappop(self)


class ArrivalQueue:
    """Requests ordered by the time at which they reach a replica."""

    __slots__ = ("_in_order", "_late", "_serial")

    def __init__(self) -> None:
        self._in_order: deque[tuple[float, int]] = deque()
        self._late: list[tuple[float, int, int]] = []  # requests that were added after later ones
        self._serial = 0

    def __len__(self) -> int:
        return len(self._in_order) + len(self._late)

    def add(self, request: int, time_s: float) -> None:
        """Add a request that arrives at this time."""
        if not self._late and (not self._in_order or time_s >= self._in_order[-1][0]):
            self._in_order.append((time_s, request))
        else:
            self._serial += 1
            heapq.heappush(self._late, (time_s, self._serial, request))

    def next_s(self) -> float:
        """Arrival time of the next request; infinite if there is none [s]."""
        first = self._in_order[0][0] if self._in_order else inf
        return min(first, self._late[0][0]) if self._late else first

    def pop_until(self, now: float) -> tuple[float, int] | None:
        """Time and index of the next request that has arrived by now; None if there is none."""
        queue, late = self._in_order, self._late
        if late and late[0][0] <= now and (not queue or late[0][0] < queue[0][0]):
            time_s, _, request = heapq.heappop(late)
            return time_s, request
        if queue and queue[0][0] <= now:
            return queue.popleft()
        return None


class KvBlocks:
    """Counts of a rank's KV blocks.

    A block hash cache keeps the content of free blocks until they are reused, oldest first, and the end of a request
    before its beginning: a preempted request that resumes soon finds most of its prompt.

    Args:
        total: blocks of the rank [count].
        keeps_content: whether a preempted request may find its blocks again.
    """

    __slots__ = ("freed", "left", "total", "used")

    def __init__(self, total: int, *, keeps_content: bool) -> None:
        self.total, self.used = total, 0
        # (request or -1, blocks) in the order in which they were freed; None where nothing is found again
        self.freed: deque[list[int]] | None = deque([[-1, total]]) if keeps_content else None
        self.left: dict[int, list[int]] = {}  # what preempted requests left in them

    @property
    def free(self) -> int:
        """Blocks that are not in use [count]."""
        return self.total - self.used

    def take(self, blocks: int) -> None:
        """Take the oldest free blocks into use."""
        self.used += blocks
        freed = self.freed
        while freed and blocks > 0:
            part = freed[0]
            if part[1] > blocks:
                part[1] -= blocks
                return
            blocks -= part[1]
            freed.popleft()
            if part[0] >= 0 and self.left.get(part[0]) is part:
                del self.left[part[0]]

    def give(self, owner: int, blocks: int) -> None:
        """Free blocks; request `owner` may find their content again, -1 for no request."""
        self.used -= blocks
        freed = self.freed
        if freed is None or blocks <= 0:
            return
        if owner < 0 and freed and freed[-1][0] < 0:
            freed[-1][1] += blocks
            return
        freed.append([owner, blocks])
        if owner >= 0:
            self.left[owner] = freed[-1]

    def left_of(self, request: int) -> int:
        """Free blocks that still hold what a request left [count]."""
        part = self.left.get(request)
        return 0 if part is None else part[1]

    def take_again(self, request: int, blocks: int) -> int:
        """A request takes back up to `blocks` of those that it left; returns how many. The rest loses its owner."""
        part = self.left.pop(request, None)
        if part is None:
            return 0
        found = min(blocks, part[1])
        part[0] = -1
        part[1] -= found
        self.used += found
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool of equal replicas.

    Args:
        clock: time of a pass.
        spec: limits of each rank.
        policy: the scheduler.
        ranks: attention-dp ranks per replica [count].
        micro_batches: micro-batches in flight per pipeline [count].
        replicas: number of replicas [count].
    """

    clock: Clock
    spec: RankSpec
    policy: Policy
    ranks: int = 1
    micro_batches: int = 1
    replicas: int = 1

    def __post_init__(self) -> None:
        for name in ("ranks", "micro_batches", "replicas"):
            require(getattr(self, name) >= 1, what=name, given=getattr(self, name), allowed="at least 1", nearest="1")

    @property
    def num_ranks(self) -> int:
        """Ranks of a replica, those of all micro-batches [count]."""
        return self.ranks * self.micro_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """The prefill pool of a disaggregated server, and the transfer of the KV cache to the decode pool.

    The decode pool streams the whole output, so the first token counts once the cache has arrived. Only the output of a
    one-token request comes from the prefill pool.

    Args:
        pool: replicas that only run prefill.
        tokens_per_s: transfer rate of one request's cache [tokens/s].
        latency_s: time to the first byte [s].
    """

    pool: Pool
    tokens_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig(CacheRoom):
    """The paged KV cache of a server; the cost of recomputing blocks is that of the deployment.

    Args:
        pool_tokens: KV cache capacity of a rank; by default the memory that weights and buffers leave free [tokens].
        longest: longest request, prompt and output, which bounds how far attention windows fill; full windows by
            default [tokens].
        swap_bytes_per_s: bandwidth for swapping preempted sequences to the host; 0 recomputes them [bytes/s].
    """

    pool_tokens: int | None = None
    longest: int | None = None
    swap_bytes_per_s: float = 0.0


def pool_of(
    deployment: Deployment,
    stack: Stack = IDEAL,
    *,
    cache: CacheConfig | None = None,
    policy_name: str | None = None,
    speculation: Speculation = PLAIN,
    two_batch_overlap: bool = False,
    replicas: int | None = None,
) -> Pool:
    """The pool of a deployment under a serving stack.

    Args:
        deployment: model, chips, layout, precision, calibration.
        stack: limits, scheduler, and host work around the kernels.
        cache: the KV cache; by default all free memory in blocks of 16 tokens, without prefix caching.
        policy_name: scheduling policy; the stack's by default.
        speculation: draft tokens per step, and the tokens that a step yields.
        two_batch_overlap: whether passes run as two half batches, one computing while the other communicates.
        replicas: number of replicas; those of the layout by default [count].

    Raises:
        InputError: no memory is left for the KV cache.
    """
    layout, cache = deployment.layout, cache or CacheConfig()
    pool_tokens, longest, block_size = cache.pool_tokens, cache.longest, cache.block_size
    model, types, chip = deployment.model, deployment.precision, deployment.cluster.chip
    size = kv_size(model, layout, types) if longest is None else kv_size(model, layout, types, longest)
    found_unit, found_fixed = size.in_tokens(block_size)
    unit, fixed = float(found_unit), int(found_fixed)
    require(unit, what=model.name, given="no KV cache", allowed="a model with a KV cache or state")
    if pool_tokens is None:
        server = replace(stack.server_memory(), block_size=block_size)
        room = float(kv_room_bytes(model, layout, types, chip, server)[0])
        require(
            room >= unit * block_size,
            what=f"{model.name} on {layout.label()}",
            given=f"{room / 1e9:.3g} GB left for KV on the fullest chip",
            allowed="memory for the weights and one request",
        )
        pool_tokens = max(int(room / layout.pp / (unit * block_size)), 1) * block_size
    grows = float(size.bytes_per_token) > 0.0
    clock = TableClock.of(deployment, stack, speculation, two_batch_overlap=two_batch_overlap)
    scheduler = stack.scheduler
    return Pool(
        clock=clock,
        spec=RankSpec(
            pool_tokens=pool_tokens,
            block_size=block_size,
            fixed_tokens=fixed,
            grows=grows,
            max_num_seqs=min(
                scheduler.max_num_seqs, max(scheduler.max_batched_tokens // int(speculation.verified_tokens), 1)
            ),
            max_batched_tokens=scheduler.max_batched_tokens,
            reserve=cache.reserve if grows else "final",
            swap_tokens_per_s=cache.swap_bytes_per_s / unit,
            prefix_caching=cache.prefix_caching,
            hash_tokens=cache.hash_tokens,
            tiers=cache.tiers,
            cache_rules=_with_cost(cache, clock),
            adapters=_adapter_slots(deployment),
            neighbour_passes=scheduler.neighbour_passes,
        ),
        policy=POLICIES.find(policy_name or scheduler.admission),
        ranks=layout.attention_dp,
        micro_batches=layout.pp,
        replicas=replicas or layout.dp,
    )


def _adapter_slots(deployment: Deployment) -> AdapterSlots | None:
    """Room for adapters on the chips of a rank; None for a model without several of them."""
    model = deployment.model
    if not isinstance(model, Model) or model.adapter is None or model.adapter.number == 1:
        return None
    adapter = model.adapter
    held = float(as_array(adapter_bytes(model, deployment.layout)["adapter"])) / adapter.resident
    link = adapter.link_bytes_per_s or host_bytes_per_s(deployment.cluster.chip)
    return AdapterSlots(slots=adapter.resident, load_s=held / link)


def _with_cost(cache: CacheConfig, clock: TableClock) -> CacheRules:
    """The rules of the cache with the time to recompute a block, where they depend on it."""
    if cache.cache_rules.eviction.key is None:
        return cache.cache_rules
    tokens, far = cache.hash_tokens, 64  # attention is linear in the tokens before a block
    first_s, last_s = (clock.prompts(0, 0, 0, [Chunk(tokens, done)], tokens, 0.0) for done in (0, far * tokens))
    return replace(cache.cache_rules, recompute_s=(first_s, max(last_s - first_s, 0.0) / far))

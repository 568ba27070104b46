"""The simulated pool of a deployment under a serving stack: clock, KV blocks, limits, policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rackline.arch import Model
from rackline.errors import InputError
from rackline.hardware.chip import host_bytes_per_s
from rackline.parallel import Deployment
from rackline.parallel.adapters import adapter_bytes
from rackline.parallel.memory import kv_room_bytes, kv_size
from rackline.passes.features import as_array
from rackline.serving.stack import IDEAL, Stack
from rackline.serving.workload import PLAIN, Speculation
from rackline.simulation.clock import Chunk, TableClock
from rackline.simulation.policies import POLICIES, Reserve
from rackline.simulation.prefix_cache import CacheRules, TierSpec
from rackline.simulation.rank_spec import AdapterSlots, Pool, RankSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache of a server.

    Args:
        pool_tokens: KV cache capacity of a rank; by default the memory that weights and buffers leave free [tokens].
        longest: longest request, prompt and output, which bounds how far attention windows fill; full windows by
            default [tokens].
        block_size: tokens per KV block [tokens].
        reserve: cache that must be free for admission; the policy's own by default.
        prefix_caching, hash_tokens, tiers: whether prompt blocks are kept by hash, tokens per hashed block [tokens],
            and the tiers behind HBM.
        cache_rules: eviction and expiry of hashed blocks; the cost of recomputing them is that of the deployment.
        swap_bytes_per_s: bandwidth for swapping preempted sequences to the host; 0 recomputes them [bytes/s].
    """

    pool_tokens: int | None = None
    longest: int | None = None
    block_size: int = 16
    reserve: Reserve | None = None
    prefix_caching: bool = False
    hash_tokens: int = 512
    tiers: Sequence[TierSpec] = ()
    cache_rules: CacheRules = field(default_factory=CacheRules)
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
    if not unit:
        raise InputError(what=model.name, given="no KV cache", allowed="a model with a KV cache or state")
    if pool_tokens is None:
        server = replace(stack.memory(), block_size=block_size)
        room = float(kv_room_bytes(model, layout, types, chip, server)[0])
        if room < unit * block_size:
            raise InputError(
                what=f"{model.name} on {layout.label()}",
                given=f"{room / 1e9:.3g} GB left for KV on the fullest chip",
                allowed="memory for the weights and one request",
            )
        pool_tokens = max(int(room / layout.pp / (unit * block_size)), 1) * block_size
    grows = float(size.bytes_per_token) > 0.0
    clock = TableClock.of(deployment, stack, speculation, two_batch_overlap=two_batch_overlap)
    return Pool(
        clock=clock,
        spec=RankSpec(
            pool_tokens=pool_tokens,
            block_size=block_size,
            fixed_tokens=fixed,
            grows=grows,
            max_num_seqs=min(stack.max_num_seqs, max(stack.max_batched_tokens // int(speculation.verified_tokens), 1)),
            max_batched_tokens=stack.max_batched_tokens,
            reserve=cache.reserve if grows else "final",
            swap_tokens_per_s=cache.swap_bytes_per_s / unit,
            prefix_caching=cache.prefix_caching,
            hash_tokens=cache.hash_tokens,
            tiers=tuple(cache.tiers),
            cache_rules=_with_cost(cache, clock),
            adapters=_adapter_slots(deployment),
            neighbour_passes=stack.neighbour_passes,
        ),
        policy=POLICIES.find(policy_name or stack.admission),
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

"""From a deployment and its stack to the pool that simulates it: clock, KV blocks, limits, policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rackline.errors import InputError
from rackline.parallel import Deployment
from rackline.parallel.memory import kv_room_bytes, kv_size
from rackline.serving.speculative import PLAIN, Speculation
from rackline.serving.stack import IDEAL, Stack
from rackline.simulation.clock import TableClock
from rackline.simulation.policies import Reserve, policy
from rackline.simulation.prefix_cache import TierSpec
from rackline.simulation.rank_spec import RankSpec
from rackline.simulation.run import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache of a server.

    Args:
        pool_tokens: KV room of a rank; what memory leaves by default [tokens].
        longest: of the requests, prompt and answer, up to which windows are filled; whole windows by default [tokens].
        block_size: of the paged cache [tokens].
        reserve: cache that must be free for admission; the policy's own by default.
        prefix_caching, hash_tokens, tiers: keep prompt blocks by hash, and where.
        swap_bytes_per_s: with a rate, preempted sequences move to the host instead of being recomputed [bytes/s].
    """

    pool_tokens: int | None = None
    longest: int | None = None
    block_size: int = 16
    reserve: Reserve | None = None
    prefix_caching: bool = False
    hash_tokens: int = 512
    tiers: Sequence[TierSpec] = ()
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
    """Servers of a deployment under a stack.

    Args:
        deployment: model, chips, layout, precision, calibration.
        stack: limits and what runs around the kernels.
        cache: the KV cache; what memory leaves in blocks of 16 tokens, without prefix caching, by default.
        policy_name: a scheduling policy; the stack's admission by default.
        speculation: drafts a step and what they yield.
        two_batch_overlap: passes run as two halves, of which one computes while the other communicates.
        replicas: how many; those of the layout by default.

    Raises:
        InputError: no room for KV.
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
                allowed="weights and one request within the memory",
            )
        pool_tokens = max(int(room / layout.pp / (unit * block_size)), 1) * block_size
    grows = float(size.bytes_per_token) > 0.0
    return Pool(
        clock=TableClock.of(deployment, stack, speculation, two_batch_overlap=two_batch_overlap),
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
        ),
        policy=policy(policy_name or stack.admission),
        ranks=layout.attention_dp,
        micro_batches=layout.pp,
        replicas=replicas or layout.dp,
    )

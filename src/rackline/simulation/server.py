"""From a deployment and its stack to the pool that simulates it: clock, KV blocks, limits, policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from rackline.arch import AnyModel
from rackline.errors import InputError
from rackline.hardware import Chip
from rackline.parallel import Deployment, Layout, Precision
from rackline.parallel.memory import FractionOf, activation_bytes, kv_bytes_per_sequence, memory_use
from rackline.serving.speculative import PLAIN, Speculation
from rackline.serving.stack import IDEAL, Stack
from rackline.simulation.clock import TableClock
from rackline.simulation.policies import Policy, Reserve, policy
from rackline.simulation.prefix_cache import TierSpec
from rackline.simulation.rank_spec import RankSpec
from rackline.simulation.run import Pool

_FAR = float(1 << 22)  # a context at which windows are full and only what grows is left


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSize:
    """KV cache of one sequence on the fullest chip: fixed_bytes + bytes_per_token · tokens.

    Args:
        fixed_bytes, bytes_per_token: as above [bytes].
        first_token_bytes: of a sequence of one token [bytes].
    """

    fixed_bytes: float
    bytes_per_token: float
    first_token_bytes: float

    def in_tokens(self, block_size: int) -> tuple[float, int]:
        """(bytes of a token of the pool, fixed part in such tokens).

        Where only windows and recurrent state are kept, a token is what the first one takes, and the fixed part at
        least one block.
        """
        if self.bytes_per_token:
            return self.bytes_per_token, round(self.fixed_bytes / self.bytes_per_token)
        fixed = max(round(self.fixed_bytes / self.first_token_bytes), block_size)
        return self.fixed_bytes / fixed, fixed


def kv_size(model: AnyModel, layout: Layout, precision: Precision) -> KvSize:
    """What a sequence takes for good, and what each token adds [bytes].

    Assumes: windows and recurrent state are taken whole from the start.
    """
    first, one, two = (float(kv_bytes_per_sequence(model, layout, precision, far)) for far in (1.0, _FAR, 2.0 * _FAR))
    per_token = (two - one) / _FAR
    fixed = max(one - per_token * _FAR, 0.0)
    return KvSize(fixed_bytes=fixed if fixed > 1e-9 * one else 0.0, bytes_per_token=per_token, first_token_bytes=first)


def kv_room_bytes(
    model: AnyModel,
    layout: Layout,
    precision: Precision,
    chip: Chip,
    *,
    batched_tokens: float,
    max_num_seqs: float,
    memory_fraction: float = 0.9,
    fraction_of: FractionOf = "memory",
) -> float:
    """Bytes for KV on the fullest chip: what weights, activations of the largest pass and the runtime leave.

    Args:
        batched_tokens: tokens of the largest pass of a rank [tokens].
        max_num_seqs: sequences whose logits it computes at once [sequences].
        memory_fraction, fraction_of: as in `rackline.parallel.max_sequences`.
    """
    empty = memory_use(
        model,
        layout,
        precision,
        chip,
        sequences_per_rank=0.0,
        context_len=1.0,
        batched_tokens=batched_tokens,
        memory_fraction=memory_fraction if fraction_of == "memory" else 1.0,
    )
    logits = float(activation_bytes(model, layout, 0.0, min(max_num_seqs, batched_tokens)))
    room = float(empty.free) - logits
    match fraction_of:
        case "memory":
            return room
        case "free":
            return room * memory_fraction
        case "static":
            return min(room, memory_fraction * chip.hbm_bytes - float(sum(empty.weights.values())))
    assert_never(fraction_of)


def pool_of(
    deployment: Deployment,
    stack: Stack = IDEAL,
    *,
    policy_name: str | None = None,
    scheduler: Policy | None = None,
    speculation: Speculation = PLAIN,
    two_batch_overlap: bool = False,
    replicas: int | None = None,
    pool_tokens: int | None = None,
    block_size: int = 16,
    reserve: Reserve | None = None,
    prefix_caching: bool = False,
    hash_tokens: int = 512,
    tiers: Sequence[TierSpec] = (),
    swap_bytes_per_s: float = 0.0,
) -> Pool:
    """Servers of a deployment under a stack.

    Args:
        deployment: model, chips, layout, precision, calibration.
        stack: limits and what runs around the kernels.
        policy_name: a scheduling policy; the stack's admission by default.
        scheduler: a policy object, in place of a name.
        speculation: drafts a step and what they yield.
        two_batch_overlap: passes run as two halves, of which one computes while the other communicates.
        replicas: how many; those of the layout by default.
        pool_tokens: KV room of a rank; what memory leaves by default [tokens].
        block_size: of the paged cache [tokens].
        reserve: cache that must be free for admission; the policy's own by default.
        prefix_caching, hash_tokens, tiers: keep prompt blocks by hash, and where.
        swap_bytes_per_s: with a rate, preempted sequences move to the host instead of being computed again [bytes/s].

    Raises:
        InputError: no room for KV.
    """
    layout = deployment.layout
    found = scheduler or policy(policy_name or stack.admission)
    size = kv_size(deployment.model, layout, deployment.precision)
    if not (size.bytes_per_token or size.fixed_bytes):
        raise InputError(what=deployment.model.name, given="no KV cache", allowed="a model that caches something")
    unit, fixed = size.in_tokens(block_size)
    if pool_tokens is None:
        room = kv_room_bytes(
            deployment.model,
            layout,
            deployment.precision,
            deployment.cluster.chip,
            batched_tokens=stack.max_batched_tokens,
            max_num_seqs=stack.max_num_seqs,
            memory_fraction=stack.memory_fraction,
            fraction_of=stack.fraction_of,
        )
        if room < unit * block_size:
            raise InputError(
                what=f"{deployment.model.name} on {layout.label()}",
                given=f"{room / 1e9:.3g} GB left for KV on the fullest chip",
                allowed="weights and one request within the memory",
            )
        pool_tokens = int(room / unit / layout.pp)
    grows = size.bytes_per_token > 0.0
    return Pool(
        clock=TableClock.of(deployment, stack, speculation, two_batch_overlap=two_batch_overlap),
        spec=RankSpec(
            pool_tokens=pool_tokens,
            block_size=block_size,
            fixed_tokens=fixed,
            grows=grows,
            max_num_seqs=min(stack.max_num_seqs, max(stack.max_batched_tokens // int(speculation.verified_tokens), 1)),
            max_batched_tokens=stack.max_batched_tokens,
            reserve=reserve if grows else "final",
            swap_tokens_per_s=swap_bytes_per_s / unit,
            prefix_caching=prefix_caching,
            hash_tokens=hash_tokens,
            tiers=tuple(tiers),
        ),
        policy=found,
        ranks=layout.attention_dp,
        micro_batches=layout.pp,
        replicas=replicas or layout.dp,
    )

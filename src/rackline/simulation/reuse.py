"""How far back prompts find their prefixes: hit rates of every cache size and expiry from one look at the requests.

For any C, a least recently used cache of C blocks holds the C blocks used last, so a block is found in it exactly
if fewer than C others were used since (its stack distance; Mattson, Gecsei, Slutz and Traiger 1970), and with a sliding
expiry if that was not too long ago. A prefix ends at the first block that is not found: of its blocks the largest
distance and the longest time count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from rackline.passes.features import Array, FloatLike, as_array
from rackline.simulation.prefix_cache import CacheRules, PrefixCache, TierSpec
from rackline.simulation.requests import Requests

_BUCKET = 512  # uses that are counted together


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """Prefix blocks that requests share with earlier ones.

    Args:
        request: to which a block belongs, (n,).
        distance: least capacity with which a block and all before it in its prompt are found [blocks], (n,).
        idle_s: longest time since the last use of the block and all before it [s], (n,).
        tokens: prompt tokens that are found with it [tokens], (n,).
        pause_s: time from each use of a block to the next, or to the end of the requests [s], (uses,).
        prompt_tokens: tokens of all prompts [tokens].
        input_len: mean prompt [tokens].
        num_blocks: different blocks [count].
        block_tokens: tokens of a block [tokens].
    """

    request: Array
    distance: Array
    idle_s: Array
    tokens: Array
    pause_s: Array
    prompt_tokens: int
    input_len: float
    num_blocks: int
    block_tokens: int

    def hit_share(self, capacity_blocks: FloatLike = inf, ttl_s: FloatLike = inf) -> Array:
        """Share of prompt tokens that a least recently used cache holds [1].

        Args:
            capacity_blocks: its capacity [blocks].
            ttl_s: sliding expiry [s]; broadcast with the capacities.
        """
        capacities, times = np.broadcast_arrays(as_array(capacity_blocks), as_array(ttl_s))
        found = [
            float(self.tokens[(self.distance <= most) & (self.idle_s < ttl)].sum())
            for most, ttl in zip(capacities.ravel().tolist(), times.ravel().tolist(), strict=True)
        ]
        return np.reshape(np.array(found) / self.prompt_tokens, capacities.shape)

    def held_s(self, ttl_s: float) -> float:
        """Seconds for which a token is held, over prompt tokens, without a limit of memory [s].

        Args:
            ttl_s: sliding expiry [s].
        """
        return self.block_tokens * float(np.minimum(self.pause_s, ttl_s).sum()) / self.prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a cache held of prompts that came one after another.

    Args:
        hit_tokens: of each prompt within a memory and all faster ones, HBM first [tokens], (n, memories).
        held_blocks: in each memory when the prompt came [blocks], (n, memories).
        prompt_tokens: of all prompts [tokens].
    """

    hit_tokens: Array
    held_blocks: Array
    prompt_tokens: int

    @property
    def hit_share(self) -> float:
        """Share of prompt tokens that the cache held [1]."""
        return float(self.hit_tokens[:, -1].sum()) / self.prompt_tokens


def arrivals(requests: Requests) -> tuple[list[int], Array]:
    """(requests in the order of arrival, their times [s]), (n,) each, where answers take no time."""
    times = requests.arrival_s.astype(float)
    if requests.after is not None:
        for index, before in enumerate(requests.after.tolist()):
            if before >= 0:
                times[index] += times[before]
    order = np.argsort(times, kind="stable")
    return order.tolist(), times[order]


def reuse_of(requests: Requests, *, ends_first: bool = False) -> Reuse | None:
    """Measure how far back each prompt finds its prefix; None where no request has hashes.

    Each prompt is looked up, then its blocks and those of its answer are used in their order.

    Args:
        requests: with hashes; a last block of a prompt that is not full counts with the tokens that it has.
        ends_first: whether blocks of a request are used from its end to its start, so that a full cache evicts the
            end of a prefix first, as engines do.
    """
    if requests.hashes is None:
        return None
    order, times = arrivals(requests)
    unit = requests.hash_tokens
    rows: list[Sequence[int]] = [requests.hashes[index] for index in order]
    more = requests.answer_hashes
    whole: list[Sequence[int]] = (
        rows if more is None else [[*row, *more[i]] for row, i in zip(rows, order, strict=True)]
    )
    num_uses = sum(map(len, whole))
    flags = np.zeros(-(-max(num_uses, 1) // _BUCKET) * _BUCKET, dtype=bool)  # uses that are the last of their block
    table = flags.reshape(-1, _BUCKET)
    counts = np.zeros(len(table), dtype=np.int64)
    last: dict[int, int] = {}
    when = np.zeros(num_uses)
    owners, distances, ages, tokens, pauses = (list[Array]() for _ in range(5))
    used = 0
    lengths: list[int] = requests.input_len[order].tolist()
    for index, row, blocks, length, now in zip(order, rows, whole, lengths, times.tolist(), strict=True):
        places = np.array(_known(row, last), dtype=np.int64)
        if len(places):
            after = counts.sum() - np.cumsum(counts)
            bucket, inside = places // _BUCKET, places % _BUCKET
            within = np.cumsum(table[bucket][:, ::-1], axis=1)[np.arange(len(places)), _BUCKET - 1 - inside]
            owners.append(np.full(len(places), index))
            distances.append(np.maximum.accumulate(after[bucket] + within))
            ages.append(np.maximum.accumulate(now - when[places]))
            begin = np.arange(len(places)) * unit
            tokens.append(np.clip(length - begin, 0, unit))
        again = np.unique(np.array([last[block] for block in blocks if block in last], dtype=np.int64))
        pauses.append(now - when[again])
        flags[again] = False
        np.subtract.at(counts, again // _BUCKET, 1)
        ordered = list(dict.fromkeys(reversed(blocks) if ends_first else blocks))
        new = np.arange(used, used + len(ordered))
        last.update(zip(ordered, new.tolist(), strict=True))
        flags[new] = True
        np.add.at(counts, new // _BUCKET, 1)
        when[new] = now
        used += len(ordered)
    return Reuse(
        request=_joined(owners),
        distance=_joined(distances),
        idle_s=_joined(ages),
        tokens=_joined(tokens),
        pause_s=np.concatenate([*pauses, times[-1] - when[np.flatnonzero(flags)]]),
        prompt_tokens=int(requests.input_len.sum()),
        input_len=float(requests.input_len.mean()),
        num_blocks=len(last),
        block_tokens=unit,
    )


def _known(row: Sequence[int], last: dict[int, int]) -> list[int]:
    """Last uses of the blocks of a prompt, up to the first that is new."""
    found: list[int] = []
    for block in row:
        place = last.get(block)
        if place is None:
            break
        found.append(place)
    return found


def _joined(parts: Sequence[Array]) -> Array:
    return np.concatenate(parts) if parts else np.zeros(0)


def unlimited_hit_share(requests: Requests) -> float | None:
    """Share of prompt tokens that an earlier prompt or answer begins with [1]; None where no request has hashes."""
    if requests.hashes is None:
        return None
    order, _ = arrivals(requests)
    unit, more = requests.hash_tokens, requests.answer_hashes
    seen: set[int] = set()
    found = 0
    lengths: list[int] = requests.input_len.tolist()
    for index in order:
        row = requests.hashes[index]
        hit = next((place for place, block in enumerate(row) if block not in seen), len(row))
        found += min(hit * unit, lengths[index])
        seen.update(row if more is None else (*row, *more[index]))
    return found / int(requests.input_len.sum())


def replay(
    requests: Requests,
    capacity_blocks: float = inf,
    rules: CacheRules | None = None,
    tiers: Sequence[TierSpec] = (),
) -> Replayed:
    """What a cache of any rules holds of prompts that come one after another; the cache of the simulator runs it.

    Args:
        requests: with hashes.
        capacity_blocks: capacity of the cache [blocks].
        rules: eviction and expiry.
        tiers: behind it, fastest first.
    """
    order, times = arrivals(requests)
    unit, rules = requests.hash_tokens, rules or CacheRules()
    cache = PrefixCache(unit, 1, tiers, rules)
    found = np.zeros((len(requests), 1 + len(tiers)), dtype=np.int64)
    held = np.zeros_like(found)
    hashes, more = requests.hashes or (), requests.answer_hashes
    lengths: list[int] = requests.input_len.tolist()
    for index, now in zip(order if len(hashes) else (), times.tolist(), strict=False):
        prompt = list(dict.fromkeys(hashes[index]))
        cache.expire(now)
        held[index] = [len(cache.idle), *(len(tier.blocks) for tier in cache.tiers)]
        hit, _, behind = cache.match(prompt, len(prompt), now)
        within = np.cumsum([hit, *behind])
        found[index] = np.minimum(within * unit, lengths[index])
        blocks = prompt if more is None else [*prompt, *more[index]]
        cache.acquire(blocks[:hit])
        cache.touch(blocks[hit : int(within[-1])])
        cache.insert(blocks[hit:], hit, blocks[hit - 1] if hit else None, now)
        cache.release(blocks, now)
        if capacity_blocks < inf:
            cache.trim(int(capacity_blocks))
    return Replayed(hit_tokens=found, held_blocks=held, prompt_tokens=int(requests.input_len.sum()))

"""One rank: its waiting queue, its prompts, its decoding batch, its paged KV cache; how ranks wait for each other."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isinf, isnan
from typing import Any, NamedTuple

import numpy as np

from rackline.serving.alignment import Alignment
from rackline.simulation.block_table import BlockTable
from rackline.simulation.decoding import DecodingBatch, Lockstep, Slots
from rackline.simulation.policies import Policy, Reserve
from rackline.simulation.prefix_cache import PrefixCache
from rackline.simulation.requests import BlockRuns, RequestLog
from rackline.simulation.server import ArrivalOrder, KeyOrder, KvBlocks, RankSpec, ResidentAdapters


class _Entry(NamedTuple):
    """How a waiting request would start: free blocks needed, tokens in them, tokens found in caches, new tokens of the
    first pass, hashed blocks in HBM, hashed blocks by lower tier."""

    need: int
    holding: int
    done: int
    take: int
    found: int
    tiers: list[int]


class Rank:
    """State of a rank, advanced by `replica`.

    Decoding goes on without it: before anything else happens to a rank, `settle` brings its KV blocks up to the clock.

    Args:
        spec: its limits.
        policy: the scheduler.
        log: log of the requests.
        together: what the ranks of its replica share.
        index: its place among them.
    """

    __slots__ = (
        "adapters",
        "blocks",
        "cache",
        "decoding",
        "final",
        "held",
        "index",
        "is_open",
        "joined",
        "log",
        "policy",
        "preemptions",
        "prefilling",
        "reserve",
        "running",
        "settled",
        "shared",
        "spec",
        "stuck",
        "swap_s",
        "tier_s",
        "together",
        "waited_s",
        "waiting",
        "yields",
    )  # fmt: skip

    def __init__(self, spec: RankSpec, policy: Policy, log: RequestLog, together: Lockstep, index: int = 0) -> None:
        self.spec, self.policy, self.log = spec, policy, log
        self.together, self.index = together, index
        self.settled = together.clock
        self.reserve: Reserve = spec.reserve or policy.reserve
        self.final = self.reserve == "final"
        self.waiting: ArrivalOrder | KeyOrder = ArrivalOrder() if policy.order is None else KeyOrder(self._key)
        self.prefilling: dict[int, int] = {}  # request → prompt tokens that are cached
        self.decoding = DecodingBatch(together, index, Slots(spec.max_num_seqs) if spec.neighbour_passes else None)
        self.running: dict[int, None] = {}  # requests in prefill or decode, in the order of admission
        self.held: dict[int, int] = {}  # blocks of prompts, and of whole requests where they are reserved
        self.shared: dict[int, Any] = {}  # request → hashed blocks that it uses
        self.preemptions = 0
        self.is_open = True
        self.stuck = False  # no waiting request can start before something happens to this rank
        self.yields = False  # a prompt did not fit: decode before another is admitted
        self.swap_s = self.tier_s = 0.0
        self.waited_s = 0.0  # since the last decode step
        self.joined: list[tuple[float, int]] = []  # when sequences came to those that wait, and how many
        self.adapters = ResidentAdapters(spec.adapters) if spec.adapters and log.adapters is not None else None
        self.cache = _cache_of(spec, log) if spec.prefix_caching and log.hashes is not None else None
        keeps_content = spec.prefix_caching and self.cache is None and not self.final
        self.blocks = KvBlocks(spec.num_blocks, keeps_content=keeps_content)

    def _key(self, request: int) -> float:
        order = self.policy.order
        return 0.0 if order is None else order(self.log, request)

    # blocks

    def settle(self) -> None:
        """Count the KV blocks that decoding has taken since the rank was last settled."""
        together = self.together
        together.changed.add(self.index)
        if self.settled != together.clock:
            if self.decoding.count and not self.final:
                need = self.decoding.new_blocks(together.clock - self.settled, self.settled)
                self.blocks.take(need)
                together.unsettled -= need
            self.settled = together.clock

    @property
    def used_blocks(self) -> int:
        """KV blocks in use at present [count]."""
        since = self.together.clock - self.settled
        if not since or self.final:
            return self.blocks.used
        return self.blocks.used + self.decoding.new_blocks(since, self.settled)

    @property
    def has_prompts(self) -> bool:
        """Whether a prompt may run in the next pass, as far as is known without trying."""
        return bool(self.prefilling) or (
            bool(self.waiting) and not self.stuck and len(self.running) < self.spec.max_num_seqs
        )

    def pause(self) -> int:
        """Decoding waits for a pass in which the others' goes on; returns the KV blocks that it would have taken.

        The rank must be settled, and the clock goes on by one token next.
        """
        spared = 0 if self.final else self.decoding.new_blocks(1)
        self.decoding.postpone(1)
        self.settled = self.together.clock + 1
        self.together.changed.add(self.index)
        return spared

    def room(self) -> float:
        """Tokens that every decoding sequence can gain before the free blocks run out [tokens]."""
        if self.final or not self.decoding.count:
            return inf
        return self.decoding.tokens_in(self.blocks.free)

    def needed(self, tokens: int) -> int:
        """KV blocks that decoding needs while every sequence gains `tokens` tokens [count]."""
        return 0 if self.final or not tokens else self.decoding.new_blocks(tokens)

    def _private(self, request: int, tokens: int) -> int:
        found = self.spec.blocks_of(tokens)
        if self.cache is None or (shared := self.shared.get(request)) is None:
            return found
        return found - len(shared) * self.cache.unit_blocks

    def free(self, request: int, now: float, owner: int = -1) -> None:
        """Free all blocks of a running request; request `owner` may find their content again (-1: no request)."""
        if request in self.decoding.base:
            context = self.decoding.remove(request)
            blocks = self.held.pop(request) if self.final else self._private(request, context)
        else:
            del self.prefilling[request]
            blocks = self.held.pop(request)
        self.blocks.give(owner, blocks)
        self.stuck = False
        del self.running[request]
        if self.decoding.slots is not None:
            self.decoding.slots.give(request)
        if self.adapters is not None and self.log.adapters is not None:
            self.adapters.release(self.log.adapters[request])
        if self.cache is not None and (shared := self.shared.pop(request, None)) is not None:
            self.blocks.used -= self.cache.release(shared, now) * self.cache.unit_blocks

    def known_prefix(self, request: int, now: float) -> int:
        """Blocks of a prompt's prefix in the memories of this rank [count]."""
        if self.cache is None:
            return 0
        hashes = self._blocks_of(self.log.hashes, request)
        found, _, behind = self.cache.match(hashes, len(hashes), now)
        return found + sum(behind)

    def _blocks_of(self, rows: Any, request: int) -> Any:
        """Hashed blocks of a request, as the cache takes them."""
        row = rows[request]
        return row if isinstance(self.cache, BlockTable) or not isinstance(row, np.ndarray) else row.tolist()

    def preempt(self, now: float) -> int:
        """Preempt the request that was admitted last (or that is last in the policy's order); returns which one."""
        if self.policy.preempts_last_of_order:
            log = self.log
            victim = max(self.running, key=lambda r: (self._key(r), log.engine_s[r], r))
        else:
            victim = next(reversed(self.running))
        log = self.log
        if victim in self.decoding.base:
            context = self.decoding.base[victim] + self.together.clock
            log.generated[victim] = log.output_len[victim] - self.decoding.remaining(victim)
            log.last_s[victim] = now
            if self.spec.swap_tokens_per_s:
                self.swap_s += context / self.spec.swap_tokens_per_s
        self.free(victim, now, victim)
        log.preempted[victim] += 1
        self.waiting.put_back(victim, log.engine_s[victim])
        return victim

    def make_room(self, tokens: int, now: float) -> bool:
        """Preempt until the next decode step fits; whether a request was preempted."""
        found = False
        while self.decoding.count and self.needed(tokens) > self.blocks.free:
            self.preempt(now)
            self.preemptions += 1
            found = True
        return found

    # prompts

    def take_prompts(self, budget: int, now: float, admit: bool) -> list[tuple[int, int, int]]:
        """Chunks of prompts for a pass: (request, new tokens, tokens before them)."""
        if self.cache is not None and self.cache.next_expiry_s <= now:
            self.cache.trim(self.blocks.free)
            self.cache.expire(now)
        chunks: list[tuple[int, int, int]] = []
        for request in list(self.prefilling):
            if budget <= 0:
                break
            if request not in self.prefilling:
                continue  # preempted for an earlier one
            done = self.prefilling[request]
            target = self.target(request)
            take = min(target - done, budget) if self.policy.chunked else target - done
            if self.reserve == "chunk":
                need = self._private(request, done + take) - self.held[request]
                while need > self.blocks.free:
                    admit = False
                    self.preemptions += 1
                    if self.preempt(now) == request:
                        break
                if request not in self.prefilling:
                    break
                self.blocks.take(need)
                self.held[request] += need
            chunks.append((request, take, done))
            budget -= take
        if self.policy.preempts_last_of_order:  # a preempted request may have its chunk already
            chunks = [chunk for chunk in chunks if chunk[0] in self.prefilling]
        if admit and self.waiting:
            self._admit(chunks, budget, now)
            # what is found in caches, in freed blocks, and which adapters are in memory may change with time
            settled = self.cache is None and self.adapters is None and not chunks
            self.stuck = settled and not (self.waiting and self.blocks.left_of(self.waiting.first()))
        if self.cache is not None:
            self._hash(chunks, now)
            self.cache.trim(self.blocks.free)
        return chunks

    def target(self, request: int) -> int:
        """Tokens that must be cached before the next token is generated [tokens]."""
        return self.log.input_len[request] + self.log.generated.get(request, 0)

    def join_ready(self, now: float) -> list[int]:
        """Requests whose prompt was computed elsewhere start to decode while there is room.

        Returns:
            Those that are finished by that: their only token came with the prompt.
        """
        ready = self.log.ready
        finished: list[int] = []
        while self.waiting and len(self.running) < self.spec.max_num_seqs and self.waiting.first() in ready:
            request = self.waiting.first()
            entry = self._entry(request, self.spec.max_batched_tokens, now)
            if entry.need > self.blocks.free or not self._has_adapter(request):
                break
            self._start(request, entry, now)
            if self.prompt_done(request, now):
                finished.append(request)
        return finished

    def _entry(self, request: int, budget: int, now: float) -> _Entry:
        """What a waiting request needs to start."""
        log, cache = self.log, self.cache
        target = self.target(request)
        done = found = resting = 0
        tiers: list[int] = []
        if request in log.ready:
            done = target
        elif self.spec.swap_tokens_per_s and request in log.last_s:
            done = target - 1  # its cache is on the host, but for the last token
        elif cache is not None:
            hashes = self._blocks_of(log.hashes, request)
            # at least one token must be computed, to predict the next from
            found, resting, tiers = cache.match(hashes, min(len(hashes), (target - 1) // cache.unit_tokens), now)
            done = (found + sum(tiers)) * cache.unit_tokens
        elif log.computed is not None and log.computed[request]:
            done = min(log.computed[request], target - 1)
        elif left := self.blocks.left_of(request):
            done = min(left, (target - 1) // self.spec.block_size) * self.spec.block_size
        take = min(target - done, budget) if self.policy.chunked else target - done
        holding = done + take
        if self.reserve == "prompt":
            holding = target
        elif self.final:
            holding = log.input_len[request] + log.output_len[request] - 1
        need = self.spec.blocks_of(holding)
        if cache is not None:
            need -= (found - resting) * cache.unit_blocks
        return _Entry(need, holding, done, take, found, tiers)

    def _has_adapter(self, request: int) -> bool:
        """Whether a request's adapter is in memory, or another one can leave for it."""
        adapters, chosen = self.adapters, self.log.adapters
        return adapters is None or chosen is None or adapters.has_room(chosen[request])

    def _admit(self, chunks: list[tuple[int, int, int]], budget: int, now: float) -> None:
        most = self.spec.max_batched_tokens
        passed: list[int] = []  # requests whose adapter has no room: others overtake them
        urgent = self.policy.preempts_for_urgent
        while self.waiting and budget > 0 and (urgent or len(self.running) < self.spec.max_num_seqs):
            request = self.waiting.first()
            if not self._has_adapter(request):
                self.waiting.remove_first()
                passed.append(request)
                continue
            entry = self._entry(request, budget, now)
            # a whole prompt that is longer than the token budget gets a pass of its own
            if entry.take > budget and (chunks or self.target(request) <= most):
                break
            if urgent:
                self._make_way(request, entry.need, chunks, now)
            if entry.need > self.blocks.free or len(self.running) >= self.spec.max_num_seqs:
                break
            self._start(request, entry, now)
            chunks.append((request, entry.take, entry.done))
            budget -= entry.take
        for request in reversed(passed):
            self.waiting.put_back(request, self.log.engine_s[request])

    def _make_way(self, request: int, need: int, chunks: list[tuple[int, int, int]], now: float) -> None:
        """Less urgent running requests leave for one that waits, where that makes room for it."""
        most = self.spec.max_num_seqs
        if len(self.running) < most and need <= self.blocks.free:
            return
        key, base, clock = self._key(request), self.decoding.base, self.together.clock
        less = [one for one in self.running if self._key(one) > key]
        grown = {one: self._private(one, base[one] + clock) for one in less if one in base and not self.final}
        if not less or need > self.blocks.free + sum(grown.get(one, self.held.get(one, 0)) for one in less):
            return
        while len(self.running) >= most or need > self.blocks.free:
            self.preempt(now)
        chunks[:] = [chunk for chunk in chunks if chunk[0] in self.prefilling]

    def _start(self, request: int, entry: _Entry, now: float) -> None:
        """Admit a request: remove it from the queue and allocate its blocks."""
        log = self.log
        self.waiting.remove_first()
        self.running[request] = None
        if self.decoding.slots is not None:
            self.decoding.slots.take(request)
        if self.adapters is not None and log.adapters is not None:
            load_s = self.adapters.use(log.adapters[request])
            self.swap_s += load_s
            log.adapter_loads += load_s > 0.0
        self.blocks.take(entry.need - self.blocks.take_again(request, entry.done // self.spec.block_size))
        if self.cache is not None:
            hashes = self._blocks_of(log.hashes, request)
            self.cache.acquire(hashes[: entry.found])
            self.shared[request] = hashes[: entry.found]
            first = isnan(log.admitted_s[request])  # blocks that a preempted request finds again are not cache hits
            if any(entry.tiers):
                self._fetch(hashes[entry.found : entry.found + sum(entry.tiers)], entry.tiers, count=first)
            if first and entry.done and request not in log.ready:
                log.cached[request] = entry.done
                log.tier_tokens[0] += entry.found * self.cache.unit_tokens
        self.held[request] = self._private(request, entry.holding)
        self.prefilling[request] = entry.done
        if isnan(log.admitted_s[request]):
            log.admitted_s[request] = now
        if self.spec.swap_tokens_per_s and request in log.last_s:
            self.swap_s += entry.done / self.spec.swap_tokens_per_s

    def _fetch(self, hashes: Any, tiers: list[int], *, count: bool) -> None:
        """Load blocks back from lower tiers; the pass does not end before they have arrived."""
        if self.cache is None:
            return
        self.cache.touch(hashes)
        for index, blocks in enumerate(tiers):
            if blocks:
                spec = self.cache.tiers[index].spec
                tokens = blocks * self.cache.unit_tokens
                self.log.tier_tokens[1 + index] += tokens if count else 0
                self.tier_s += spec.latency_s + tokens / spec.tokens_per_s

    def _hash(self, chunks: list[tuple[int, int, int]], now: float) -> None:
        """Make the blocks that this pass completes available by hash."""
        cache = self.cache
        if cache is None:
            return
        for request, take, done in chunks:
            hashes = self._blocks_of(self.log.hashes, request)
            full = min((done + take) // cache.unit_tokens, len(hashes))
            self._share(request, hashes[len(self.shared[request]) : full], now)

    def _share(self, request: int, blocks: Any, now: float) -> None:
        """Make further blocks of a request available by hash."""
        cache, mine = self.cache, self.shared[request]
        if cache is None or not len(blocks):
            return
        double = cache.insert(blocks, len(mine), mine[-1] if len(mine) else None, now)
        self.blocks.used -= double * cache.unit_blocks
        if request in self.held:
            self.held[request] -= len(blocks) * cache.unit_blocks
        self.shared[request] = np.concatenate([mine, blocks]) if isinstance(cache, BlockTable) else [*mine, *blocks]

    # the end of a pass

    def finish(self, request: int, now: float) -> None:
        """A decoding sequence has all its tokens."""
        log = self.log
        if self.cache is not None and log.answer_hashes is not None:
            mine, unit = self.shared.get(request), self.cache.unit_tokens
            # the next turn of a conversation begins with the answer; not where another pool has computed the prompt
            if mine is not None and len(mine) == log.input_len[request] // unit:
                full = (log.input_len[request] + log.output_len[request] - 1) // unit
                self._share(request, self._blocks_of(log.answer_hashes, request)[: full - len(mine)], now)
        self.free(request, now)

    def prompt_done(self, request: int, now: float) -> bool:
        """The prompt is cached and a token was generated; whether that was the last one."""
        log = self.log
        generated = log.generated.pop(request, 0) + 1
        target = log.input_len[request] + generated - 1
        log.ready.discard(request)
        if generated >= log.output_len[request]:
            self.free(request, now)
            return True
        del self.prefilling[request]
        self.decoding.add(request, target, log.output_len[request] - generated)
        if not self.final:
            del self.held[request]
        return False


def _cache_of(spec: RankSpec, log: RequestLog) -> PrefixCache | BlockTable:
    """The cache over arrays for numbered blocks, where it knows the rules."""
    unit_blocks, rules, rows = spec.hash_tokens // spec.block_size, spec.cache_rules, log.hashes
    if isinstance(rows, BlockRuns) and rules.eviction.key is None and isinf(rules.ttl_s):
        answers = log.answer_hashes.size if isinstance(log.answer_hashes, BlockRuns) else 0
        return BlockTable(max(rows.size, answers), spec.hash_tokens, unit_blocks, spec.tiers, rules)
    return PrefixCache(spec.hash_tokens, unit_blocks, spec.tiers, rules)


class AlignedPrompts:
    """How the ranks of a replica wait for each other with their prompts, and for how many passes they have waited."""

    def __init__(self, alignment: Alignment) -> None:
        self.alignment = alignment
        self.held_passes = self.gathered_passes = self.owed_passes = 0

    def passes_held(self, ranks: Sequence[Rank], steps: int) -> int:
        """Passes of decoding before prompts may run, unless something happens meanwhile; 0 where they may run now.

        Args:
            steps: of the replica so far [count].
        """
        alignment = self.alignment
        if not any(rank.decoding.count for rank in ranks):
            return 0
        if alignment.every:
            return -steps % alignment.every
        if alignment.decodes_after:
            return self.owed_passes
        some = [rank.has_prompts for rank in ranks]
        decode = all(rank.decoding.count for rank in ranks)
        if all(some):
            self.held_passes = 0
            if decode and self.gathered_passes < alignment.all_passes:
                return alignment.all_passes - self.gathered_passes
            self.gathered_passes = 0 if decode else self.gathered_passes
            return 0
        if not any(some):
            return 0
        if self.held_passes >= alignment.some_passes or (alignment.idle_releases and not decode):
            self.held_passes = 0
            return 0
        return alignment.some_passes - self.held_passes

    def count_held(self, ranks: Sequence[Rank], steps: int, held: int) -> None:
        """Passes without prompts, of which some were held."""
        self.owed_passes = max(self.owed_passes - steps, 0)
        if held and all(rank.has_prompts for rank in ranks):
            self.gathered_passes += steps
        elif held:
            self.held_passes += steps
        elif self.alignment.counts_always:
            self.held_passes = (self.held_passes + steps) % (self.alignment.some_passes + 1)

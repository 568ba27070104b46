"""One rank: its waiting queue, its running sequences, and its paged KV cache.

All decoding sequences gain the same tokens in a step, so one clock counts for all of them: a sequence keeps
`context - clock`, ends when the clock reaches its end, and needs a new block whenever the clock passes its place
modulo the block size. A step of any number of sequences is then an addition.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from rackline.simulation.book import Book
from rackline.simulation.extremes import Extremes
from rackline.simulation.policies import Policy, Reserve, reserved_tokens
from rackline.simulation.prefix_cache import PrefixCache
from rackline.simulation.rank_spec import RankSpec, token_clock
from rackline.simulation.remains import Remains


class _Entry(NamedTuple):
    """How a waiting request would start: blocks that must be free, tokens that they hold, tokens found in caches, new
    tokens of the first pass, hashed blocks in HBM, hashed blocks by lower tier."""

    need: int
    holding: int
    done: int
    take: int
    found: int
    tiers: list[int]


class Rank:
    """State of a rank; `replica` drives it."""

    __slots__ = (
        "base", "book", "bs", "cache", "chunked", "clock", "end_at", "ends", "extremes", "final", "held", "is_open",
        "longest", "max_seqs", "n", "order", "phases", "policy", "preemptions", "prefilling", "remains", "reserve",
        "shared", "shortest", "spec", "steps", "sum_base", "swap_s", "tier_s", "total", "used", "waiting", "yields",
    )  # fmt: skip

    def __init__(self, spec: RankSpec, policy: Policy, book: Book, tokens_per_step: float = 1.0) -> None:
        self.spec, self.policy, self.book = spec, policy, book
        self.bs, self.total, self.max_seqs = spec.block_size, spec.num_blocks, spec.max_num_seqs
        self.reserve: Reserve = spec.reserve or policy.reserve
        self.final = self.reserve == "final"
        self.chunked = policy.chunked
        self.waiting: deque[int] | list[tuple[float, float, int]] = deque[int]() if policy.order is None else []
        self.prefilling: dict[int, int] = {}  # request → prompt tokens that are cached
        self.order: dict[int, None] = {}  # everything that runs, in the order of admission
        self.base: dict[int, int] = {}  # decoding request → context - clock
        self.extremes = Extremes(self.base)
        self.end_at: dict[int, int] = {}
        self.ends: list[tuple[int, int]] = []
        self.held: dict[int, int] = {}  # blocks of prompts, and of whole requests that are reserved
        self.shared: dict[int, Sequence[int]] = {}  # request → hashed blocks that it uses
        self.n = self.sum_base = self.clock = self.steps = self.used = self.preemptions = 0
        self.longest = self.shortest = 0
        self.phases = [0] * self.bs
        self.is_open = True
        self.yields = False  # a prompt found no room: decoding goes on before another is admitted
        self.swap_s = self.tier_s = 0.0
        self.cache = (
            PrefixCache(spec.hash_tokens, spec.hash_tokens // spec.block_size, spec.tiers)
            if spec.prefix_caching and book.hashes is not None
            else None
        )
        self.remains = Remains(self.total) if spec.prefix_caching and self.cache is None and not self.final else None

    @property
    def kv(self) -> int:
        """Tokens that decoding sequences have cached [tokens]."""
        return self.sum_base + self.n * self.clock

    @property
    def load(self) -> int:
        """Requests that wait or run [requests]."""
        return len(self.waiting) + len(self.order)

    # waiting queue

    def enqueue(self, request: int, arrival_s: float) -> None:
        """Put a request into the waiting queue."""
        if isinstance(self.waiting, deque):
            self.waiting.append(request)
        else:
            heapq.heappush(self.waiting, (self._key(request), arrival_s, request))

    def head(self) -> int:
        """Who is next."""
        return self.waiting[0] if isinstance(self.waiting, deque) else self.waiting[0][2]

    def _return(self, request: int) -> None:
        """A preempted request goes to the front, or to its place."""
        if isinstance(self.waiting, deque):
            self.waiting.appendleft(request)
        else:
            heapq.heappush(self.waiting, (self._key(request), self.book.engine_s[request] or 0.0, request))

    def _key(self, request: int) -> float:
        order = self.policy.order
        return 0.0 if order is None else order(self.book, request)

    # blocks

    def needed(self, tokens: int) -> int:
        """KV blocks that decoding takes while every sequence gains a number of tokens [count]."""
        if self.final or not tokens:
            return 0
        if tokens == 1:
            return self.phases[self.clock % self.bs]
        whole, part = divmod(tokens, self.bs)
        found = whole * self.n
        if part:
            first = self.clock % self.bs
            last = first + part
            phases = self.phases
            found += sum(phases[first:last])
            if last > self.bs:
                found += sum(phases[: last - self.bs])
        return found

    def take(self, blocks: int) -> None:
        """Take a number of free blocks into use."""
        self.used += blocks
        if self.remains is not None and blocks > 0:
            self.remains.take(blocks)

    def _give(self, request: int, blocks: int) -> None:
        self.used -= blocks
        if self.remains is not None:
            self.remains.give(request, blocks)

    def _private(self, request: int, tokens: int) -> int:
        shared = self.shared.get(request)
        found = self.spec.blocks_of(tokens)
        return found if shared is None or self.cache is None else found - len(shared) * self.cache.unit_blocks

    def free(self, request: int, owner: int = -1) -> None:
        """Give all blocks of a running request back; its content is of use to `owner`, if to anybody."""
        if request in self.base:
            base = self.base.pop(request)
            del self.end_at[request]
            context = base + self.clock
            self.n -= 1
            self.sum_base -= base
            if self.final:
                self.used -= self.held.pop(request)
            else:
                self.phases[-base % self.bs] -= 1
                self._give(owner, self._private(request, context))
            if self.n and (base == self.longest or base == self.shortest):
                self.longest, self.shortest = self.extremes.most(), self.extremes.least()
        else:
            del self.prefilling[request]
            self._give(owner, self.held.pop(request))
        del self.order[request]
        shared = self.shared.pop(request, None)
        if shared is not None and self.cache is not None:
            self.used -= self.cache.release(shared) * self.cache.unit_blocks

    def preempt(self, now: float) -> int:
        """Stop the request that was admitted last (or that is last in the policy's order), put it back; which one."""
        if self.policy.preempts_last_of_order:
            book = self.book
            victim = max(self.order, key=lambda r: (self._key(r), book.engine_s[r] or 0.0, r))
        else:
            victim = next(reversed(self.order))
        book = self.book
        if victim in self.base:
            context = self.base[victim] + self.clock
            book.generated[victim] = book.output_len[victim] - (self.end_at[victim] - self.clock)
            book.last_s[victim] = now
            if self.spec.swap_tokens_per_s:
                self.swap_s += context / self.spec.swap_tokens_per_s
        self.free(victim, victim)
        book.preempted[victim] = book.preempted.get(victim, 0) + 1
        self.preemptions += 1
        self._return(victim)
        return victim

    def make_room(self, tokens: int, now: float) -> bool:
        """Preempt until the next step of decoding fits; whether anybody had to go."""
        found = False
        while self.n and self.needed(tokens) > self.total - self.used:
            self.preempt(now)
            found = True
        return found

    # prompts

    def take_prompts(self, budget: int, now: float, admit: bool) -> list[tuple[int, int, int]]:
        """Pieces of prompts for a pass: (request, new tokens, tokens before them)."""
        chunks: list[tuple[int, int, int]] = []
        for request in list(self.prefilling):
            if budget <= 0:
                break
            if request not in self.prefilling:
                continue  # preempted by one before it
            done = self.prefilling[request]
            target = self.target(request)
            take = min(target - done, budget) if self.chunked else target - done
            if self.reserve == "chunk":
                need = self._private(request, done + take) - self.held[request]
                while need > self.total - self.used:
                    admit = False
                    if self.preempt(now) == request:
                        break
                if request not in self.prefilling:
                    break
                self.take(need)
                self.held[request] += need
            chunks.append((request, take, done))
            budget -= take
        if self.policy.preempts_last_of_order:  # who is stopped may have had its piece already
            chunks = [chunk for chunk in chunks if chunk[0] in self.prefilling]
        if admit and self.waiting:
            self._admit(chunks, budget, now)
        if self.cache is not None:
            self._hash(chunks)
            self.cache.trim(self.total - self.used)
        return chunks

    def target(self, request: int) -> int:
        """Tokens that must be cached before the next token comes out [tokens]."""
        return self.book.input_len[request] + self.book.generated.get(request, 0)

    def join_ready(self, now: float) -> None:
        """Requests whose prompt was computed elsewhere start to decode, as far as there is room."""
        ready = self.book.ready
        while self.waiting and len(self.order) < self.max_seqs and self.head() in ready:
            request = self.head()
            entry = self._entry(request, self.spec.max_batched_tokens)
            if entry.need > self.total - self.used:
                return
            self._start(request, entry, now)
            self.prompt_done(request)

    def _entry(self, request: int, budget: int) -> _Entry:
        """What a waiting request needs to start."""
        book, cache = self.book, self.cache
        target = self.target(request)
        done = found = resting = 0
        tiers: list[int] = []
        if request in book.ready:
            done = target
        elif self.spec.swap_tokens_per_s and request in book.last_s:
            done = target - 1  # its cache is on the host; only the last token is not in it
        elif cache is not None and book.hashes is not None:
            hashes = book.hashes[request]
            # at least one token is computed, so that there is something to predict from
            most = min(len(hashes), (target - 1) // cache.unit_tokens)
            found, resting, tiers = cache.match(hashes, most)
            done = (found + sum(tiers)) * cache.unit_tokens
        elif book.computed is not None and book.computed[request]:
            done = min(book.computed[request], target - 1)
        elif self.remains is not None and request in self.remains.left:
            done = min(self.remains.left[request][1], (target - 1) // self.bs) * self.bs
        take = min(target - done, budget) if self.chunked else target - done
        whole = book.input_len[request] + book.output_len[request] - 1
        holding = reserved_tokens(self.reserve, chunk=done + take, prompt=target, final=whole)
        need = self.spec.blocks_of(holding)
        if cache is not None:
            need -= (found - resting) * cache.unit_blocks
        return _Entry(need, holding, done, take, found, tiers)

    def _admit(self, chunks: list[tuple[int, int, int]], budget: int, now: float) -> None:
        most = self.spec.max_batched_tokens
        while self.waiting and budget > 0 and len(self.order) < self.max_seqs:
            request = self.head()
            entry = self._entry(request, budget)
            # a whole prompt that no pass can hold goes alone
            if entry.take > budget and (chunks or self.target(request) <= most):
                return
            if entry.need > self.total - self.used:
                return
            self._start(request, entry, now)
            chunks.append((request, entry.take, entry.done))
            budget -= entry.take

    def _start(self, request: int, entry: _Entry, now: float) -> None:
        """Take a request out of the queue and give it its blocks."""
        book = self.book
        if isinstance(self.waiting, deque):
            self.waiting.popleft()
        else:
            heapq.heappop(self.waiting)
        self.order[request] = None
        if self.remains is not None:
            again = self.remains.reuse(request, entry.done // self.bs)
            self.used += again
            self.take(entry.need - again)
        else:
            self.used += entry.need
        if self.cache is not None and book.hashes is not None:
            hashes = book.hashes[request]
            self.cache.acquire(hashes[: entry.found])
            self.shared[request] = hashes[: entry.found]
            first = book.admitted_s[request] is None  # what a preempted request finds again is no hit of its own
            if any(entry.tiers):
                self._fetch(hashes[entry.found : entry.found + sum(entry.tiers)], entry.tiers, count=first)
            if first and entry.done and request not in book.ready:
                book.cached[request] = entry.done
                book.tier_tokens[0] += entry.found * self.cache.unit_tokens
        self.held[request] = self._private(request, entry.holding)
        self.prefilling[request] = entry.done
        if book.admitted_s[request] is None:
            book.admitted_s[request] = now
        if self.spec.swap_tokens_per_s and request in book.last_s:
            self.swap_s += entry.done / self.spec.swap_tokens_per_s

    def _fetch(self, hashes: Sequence[int], tiers: list[int], *, count: bool) -> None:
        """Blocks come back from lower tiers; the pass is not over before they are there."""
        if self.cache is None:
            return
        self.cache.touch(hashes)
        for index, blocks in enumerate(tiers):
            if blocks:
                spec = self.cache.tiers[index].spec
                tokens = blocks * self.cache.unit_tokens
                self.book.tier_tokens[1 + index] += tokens if count else 0
                self.tier_s += spec.latency_s + tokens / spec.tokens_per_s

    def _hash(self, chunks: list[tuple[int, int, int]]) -> None:
        """Blocks that this pass completes can be found from now on."""
        cache, book = self.cache, self.book
        if cache is None or book.hashes is None:
            return
        for request, take, done in chunks:
            hashes = book.hashes[request]
            full = min((done + take) // cache.unit_tokens, len(hashes))
            mine = self.shared[request]
            if full <= len(mine):
                continue
            for block in hashes[len(mine) : full]:
                if not cache.insert(block):
                    self.used -= cache.unit_blocks
                self.held[request] -= cache.unit_blocks
            self.shared[request] = hashes[:full]

    # the end of a pass

    def advance(self, tokens: int, steps: int) -> list[int]:
        """Advance decoding by a number of tokens (their blocks are counted already); returns who has finished."""
        self.clock += tokens
        self.steps += steps
        ends, clock = self.ends, self.clock
        finished: list[int] = []
        while ends and ends[0][0] <= clock:
            end, request = heapq.heappop(ends)
            if self.end_at.get(request) == end:
                self.free(request)
                finished.append(request)
        return finished

    def prompt_done(self, request: int) -> bool:
        """The prompt is cached and a token came out; whether that was the last one."""
        book = self.book
        generated = book.generated.pop(request, 0) + 1
        target = book.input_len[request] + generated - 1
        book.ready.discard(request)
        if generated >= book.output_len[request]:
            self.free(request)
            return True
        del self.prefilling[request]
        base = target - self.clock
        self.base[request] = base
        self.extremes.add(request, base)
        end = self.clock + book.output_len[request] - generated
        self.end_at[request] = end
        heapq.heappush(self.ends, (end, request))
        self.longest = max(self.longest, base) if self.n else base
        self.shortest = min(self.shortest, base) if self.n else base
        self.n += 1
        self.sum_base += base
        if not self.final:
            self.phases[-base % self.bs] += 1
            del self.held[request]
        return False

    def steps_to_end(self, tokens_per_step: float) -> int:
        """Steps until the next sequence finishes [count]; at least 1."""
        ends = self.ends
        while ends and self.end_at.get(ends[0][1]) != ends[0][0]:
            heapq.heappop(ends)
        if not ends:
            return 1 << 60
        if tokens_per_step == 1.0:
            return ends[0][0] - self.clock
        steps = max(ceil(ends[0][0] / tokens_per_step) - self.steps - 1, 1)
        while token_clock(self.steps + steps, tokens_per_step) < ends[0][0]:
            steps += 1
        return steps

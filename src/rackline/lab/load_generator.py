"""The load generator: prompts of stated lengths, each request at its moment, every stream read at once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx2
import numpy as np

from rackline.lab.stream import Bounds, Connections, Stream, Target
from rackline.processes import Held, held
from rackline.simulation import Requests
from rackline.validation.observed import GeneratorLimits, ObservedRequest

PromptForm = Literal["tokens", "words"]
_WORDS = (
    "the", "of", "and", "to", "in", "is", "was", "for", "on", "that", "with", "as", "it", "by", "from", "at", "his",
    "which", "this", "also", "be", "had", "or", "has", "first", "one", "their", "new", "after", "who", "not", "they",
    "two", "been", "other", "when", "there", "all", "during", "into", "may", "than", "up", "would", "only", "some",
    "school", "many", "more", "over", "three", "city", "years", "where", "under", "between", "later", "out", "most",
    "while", "about", "used", "world", "against", "life", "state", "part", "known", "number", "such", "house", "same",
)  # fmt: skip
"""Common words, a token each in most vocabularies when a space stands before them."""
_FIRST_ID = 100
"""Ids below are often control tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """How requests are written.

    Args:
        target: the server.
        form: tokens (ids, whose number is exact) or words (about one token each).
        vocab_size: ids are drawn below it [tokens].
        natural_ends: whether answers may end before the length that was asked for.
        seed: of what is made up.
    """

    target: Target
    form: PromptForm = "tokens"
    vocab_size: int = 10_000
    natural_ends: bool = False
    seed: int = 0

    def body(self, requests: Requests, index: int) -> bytes:
        """The JSON of one request."""
        data: dict[str, Any] = {
            "model": self.target.served_name,
            "max_tokens": int(requests.output_len[index]),
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.0,
        }
        if not self.natural_ends:
            data |= {"ignore_eos": True, "min_tokens": int(requests.output_len[index])}
        tiers = requests.priority
        if tiers is not None and tiers.min() < tiers.max():  # as vLLM's scheduler reads it: a lower one is more urgent
            data["priority"] = int(tiers[index])
        prompt = self.prompt(requests, index)
        if self.target.endpoint == "chat":
            data["messages"] = [{"role": "user", "content": prompt}]
        else:
            data["prompt"] = prompt
        return json.dumps(data, separators=(",", ":")).encode()

    def prompt(self, requests: Requests, index: int) -> str | list[int]:
        """Ids or words; full blocks by their hashes, the rest by the request itself."""
        length = int(requests.input_len[index])
        parts: list[np.ndarray[Any, Any]] = []
        if requests.hashes is not None:
            size = requests.hash_tokens
            parts = [self._drawn(size, 1, block) for block in requests.hashes[index][: length // size]]
            length -= size * len(parts)
        drawn = np.concatenate([*parts, self._drawn(length, 0, index)])
        if self.form == "tokens" and self.target.endpoint == "completions":
            return drawn.tolist()
        return " ".join(_WORDS[int(one) % len(_WORDS)] for one in drawn)

    def _drawn(self, count: int, kind: int, number: int) -> np.ndarray[Any, Any]:
        random = np.random.default_rng((self.seed, kind, int(number) & (2**64 - 1)))
        return random.integers(min(_FIRST_ID, self.vocab_size // 2), self.vocab_size, count)


Progress = Callable[[int, int, float], None]
_AHEAD_S = 0.05  # a request is written before its moment [s]
_TICK_S = 0.005  # between looks at the generator's own lag [s]
_REPORT_S = 0.25  # between looks at the progress [s]
_AGAIN_S = 0.1  # between attempts to end what is in flight [s]
_NEVER = 1_000_000_000  # collections of middle-aged objects before one of old ones
_FILES = 64  # open files beside connections


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a run recorded.

    Args:
        requests: one record each, in the order of the load.
        generator: the load generator's own errors.
        interrupted: whether Ctrl-C ended it.
        start: of the run, by the clock of `time.perf_counter` [s].
    """

    requests: tuple[ObservedRequest, ...]
    generator: GeneratorLimits
    interrupted: bool
    start: float


def observe_load(requests: Requests, prompts: Prompts, bounds: Bounds, progress: Progress | None = None) -> Observed:
    """Send requests to a live server and record what comes back.

    Each request has exactly one record, however it ends; when this returns no task and no connection is left.
    An interruption gives what was recorded so far.

    Args:
        requests: when each is due, its lengths, what it waits for and what it shares.
        prompts: how requests are written, and to whom.
        bounds: of the run and its requests.
        progress: called from time to time with (requests done, all requests, seconds).
    """
    with held() as hold, _files(len(requests) + _FILES), _quiet_collector():
        run = _Run(requests=requests, prompts=prompts, bounds=bounds, progress=progress, hold=hold)
        if _in_loop():  # a notebook: its loop runs in this thread already
            worker = threading.Thread(target=lambda: asyncio.run(run.go()))
            worker.start()
            worker.join()
        else:
            asyncio.run(run.go())
    return run.found()


@dataclass(slots=True, kw_only=True)
class _Run:
    """A load under way."""

    requests: Requests
    prompts: Prompts
    bounds: Bounds
    progress: Progress | None
    hold: Held
    streams: dict[int, Stream] = field(default_factory=dict[int, Stream])
    tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    followers: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    lags: list[float] = field(default_factory=list[float])
    events: int = 0
    finished: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    start: float = 0.0
    took_s: float = 0.0
    busy_s: float = 0.0
    failed: BaseException | None = None
    all_done: asyncio.Event = field(default_factory=asyncio.Event)

    async def go(self) -> None:
        """Run the load within its time."""
        waits = httpx2.Timeout(
            connect=self.bounds.connect_s, read=self.bounds.stall_s, write=self.bounds.stall_s, pool=None
        )
        busy = time.process_time()
        async with httpx2.AsyncClient(transport=Connections(), timeout=waits) as client:
            with contextlib.suppress(httpx2.HTTPError):  # what the client imports on its first request is loaded
                await client.get(f"{self.prompts.target.base_url}/models", headers=self.prompts.target.headers)
            self.start = time.perf_counter()
            self._begin(self._watch())
            self._begin(self._send(client))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.all_done.wait(), self.bounds.max_s)
            self.took_s = time.perf_counter() - self.start
            await _ended(self.tasks)
        self.busy_s = time.process_time() - busy
        if self.failed is not None:
            raise self.failed

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.failed = self.failed or task.exception()
            self.all_done.set()

    async def _send(self, client: httpx2.AsyncClient) -> None:
        """Start each request that waits for no other at its moment."""
        after = self.requests.after
        free = range(len(self.requests)) if after is None else np.flatnonzero(after < 0).tolist()
        if after is not None:
            for index, before in enumerate(after.tolist()):
                if before >= 0:
                    self.followers.setdefault(before, []).append(index)
        for index in free:
            due = float(self.requests.arrival_s[index])
            wait = self.start + due - _AHEAD_S - time.perf_counter()
            if wait > 0.0:
                await asyncio.sleep(wait)
            elif index % 64 == 0:
                await asyncio.sleep(0)
            self._begin(self._one(client, index, due))

    async def _one(self, client: httpx2.AsyncClient, index: int, due: float) -> None:
        """Send a request at its time, wait for its end, and send what follows it."""
        stream = self.stream(index, due)
        self.streams[index] = stream
        body = self.prompts.body(self.requests, index)
        wait = self.start + due - time.perf_counter()
        if wait > 0.0:
            await asyncio.sleep(wait)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await stream.run(client, body)
        finally:
            self.in_flight -= 1
        self.finished += 1
        now = time.perf_counter() - self.start
        for follower in self.followers.get(index, ()):
            self._begin(self._one(client, follower, now + float(self.requests.arrival_s[follower])))
        if self.finished == len(self.requests):
            self.all_done.set()

    def stream(self, index: int, due: float) -> Stream:
        """A request that is not sent yet."""
        hashes, classes = self.requests.hashes, self.requests.classes
        return Stream(
            target=self.prompts.target,
            bounds=self.bounds,
            input_len=int(self.requests.input_len[index]),
            output_len=int(self.requests.output_len[index]),
            arrival_s=due,
            start=self.start,
            saw=self._saw,
            after=-1 if self.requests.after is None else int(self.requests.after[index]),
            blocks=() if hashes is None else tuple(hashes[index]),
            class_name="" if classes is None else self.requests.kinds[int(classes[index])].name,
        )

    def _saw(self) -> None:
        self.events += 1

    async def _watch(self) -> None:
        """Measure how late this loop sees what is due, and report the progress."""
        reported = self.start
        while True:
            began = time.perf_counter()
            await asyncio.sleep(_TICK_S)
            now = time.perf_counter()
            self.lags.append(max(now - began - _TICK_S, 0.0))
            if self.hold.pressed:
                self.all_done.set()
            if self.progress is not None and now - reported > _REPORT_S:
                reported = now
                self.progress(self.finished, len(self.requests), now - self.start)

    def found(self) -> Observed:
        """All records, also of requests that were never due, and the generator's errors."""
        due = self.requests.arrival_s
        records = tuple(
            (self.streams.get(index) or self.stream(index, float(due[index]))).record()
            for index in range(len(self.requests))
        )
        return Observed(
            requests=records, generator=self._limits(records), interrupted=self.hold.pressed, start=self.start
        )

    def _limits(self, records: tuple[ObservedRequest, ...]) -> GeneratorLimits:
        late = np.array([one.late_s for one in records], dtype=np.float64)
        late = late[np.isfinite(late)]
        waits = waits_of(np.array(self.lags))
        took_s = max(self.took_s, 1e-9)

        def at(values: Any, percentile: float) -> float:
            return float(np.percentile(values, percentile)) if len(values) else float("nan")

        return GeneratorLimits(
            late_p50_s=at(late, 50),
            late_p99_s=at(late, 99),
            lag_p50_s=at(waits, 50),
            lag_p99_s=at(waits, 99),
            lag_max_s=float(waits.max()) if len(waits) else float("nan"),
            busy_share=self.busy_s / took_s,
            requests_per_s=len(late) / took_s,
            events_per_s=self.events / took_s,
            in_flight=self.most_in_flight,
        )


def waits_of(lags: Any) -> Any:
    """How long events at evenly spread moments wait, from lags sampled one after the other [s].

    During a lag of several ticks no other look begins; the moments that fall into it are put back, each with what was
    left of the lag (the correction for coordinated omission).

    >>> waits_of(np.array([0.0, 0.012])).round(3).tolist()
    [0.0, 0.012, 0.007, 0.002]
    """
    missing = [np.arange(lag - _TICK_S, 0.0, -_TICK_S) for lag in lags[lags > _TICK_S].tolist()]
    return np.concatenate([lags, *missing])


async def _ended(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel tasks until each has ended: one that is just opening a connection may not notice the first time."""
    while tasks:
        for task in list(tasks):
            task.cancel()
        await asyncio.wait(list(tasks), timeout=_AGAIN_S)


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextlib.contextmanager
def _quiet_collector() -> Generator[None]:
    """Only young objects are collected meanwhile: a look at all of them stops the streams for tens of milliseconds."""
    gc.collect()
    gc.freeze()
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)
        gc.unfreeze()


@contextlib.contextmanager
def _files(wanted: int) -> Generator[None]:
    """Allow as many open files as there may be streams, up to the system's limit."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        yield
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

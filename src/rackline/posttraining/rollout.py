"""Rollouts: a batch of answers that starts together and empties towards the longest.

All sequences of a rank gain one token per step, so the number that still run is a step function of the clock in tokens:
it falls where an answer ends, and is filled up from those that wait while there are any. Between two ends the time of a
step follows from the number of sequences and their mean context, so the time of a batch is one sum:

    T = prefill + Σ_i (c_{i+1} - c_i) · token_s(active_i, prompt_len + (c_i + c_{i+1}) / 2 - mean start_i)

Answers of several turns wait for tools between them, in seconds, not in tokens: then the ends are taken one by one.

With several batches in flight (bounded staleness) the ends of one are filled by the next, and the mean number of
running sequences is that of Little's law; with partial rollouts a step never waits for the longest answer.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import numpy as np

from rackline.errors import require
from rackline.hardware import Cluster
from rackline.parallel import Deployment, Layout
from rackline.parallel.memory import fitting_sequences
from rackline.passes import Batch
from rackline.passes.features import Array
from rackline.posttraining.job import NO_TOOLS, AnswerLengths, RlJob, Tools
from rackline.serving.steady import Engine
from rackline.system import System

_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollout:
    """One batch of answers on all replicas.

    Args:
        seconds: from the first prompt to the last token [s].
        prefill_s: of it, prompts [s].
        half_s: until half of the answers are done [s].
        clock_s, running: when the number of running sequences changes, and that number on all replicas, (events,)
            [s], [sequences].
        slots: sequences that a rank can run at once [sequences].
        per_rank: sequences of the fullest rank [sequences].
        tokens: generated [tokens].
    """

    seconds: float
    prefill_s: float
    half_s: float
    clock_s: Array
    running: Array
    slots: int
    per_rank: int
    tokens: float

    @property
    def tail_s(self) -> float:
        """Time after half of the answers are done [s]."""
        return self.seconds - self.half_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutEngine:
    """The generating side: one deployment under a serving stack.

    Args:
        system: of the generating side, on its own chips.
        deployment: of it under a layout.
        engine: its pass tables.
        prompt_len: mean prompt [tokens].
        shared: answers that share a prompt, whose prefix is cached [count].
        tools: what answers wait for between their turns.
        beside_s: time of a decode step beside the engine's own [s].
    """

    system: System
    deployment: Deployment
    engine: Engine
    prompt_len: float
    shared: int
    tools: Tools = NO_TOOLS
    beside_s: float = 0.0

    @classmethod
    def of(cls, cluster: Cluster, layout: Layout, job: RlJob) -> RolloutEngine:
        """Build the pass tables of the policy on some of the chips.

        Raises:
            LayoutError: the layout is impossible there.
        """
        system = replace(job.serving, cluster=cluster)
        if layout.chips_per_replica > 1:
            system = under_ray(system)
        return cls(
            system=system,
            deployment=system.deployment(layout),
            engine=system.engine(layout, speculation=job.speculation),
            prompt_len=job.prompt_len,
            shared=job.generations,
            tools=job.tools,
            beside_s=job.overheads.decode_step_s,
        )

    @property
    def ranks(self) -> int:
        """Ranks with sequences of their own [count]."""
        return self.deployment.layout.attention_dp * self.deployment.layout.dp

    def slots(self, lengths: AnswerLengths) -> int:
        """Sequences that a rank can run at once: memory at the mean context of those that run, and the stack's limit.

        Raises:
            InputError: the model does not fit with one sequence.
        """
        deployment, layout = self.deployment, self.deployment.layout
        most = self.prompt_len + self.tools.tokens + lengths.longest
        held = fitting_sequences(
            deployment.model,
            layout,
            deployment.precision,
            deployment.cluster.chip,
            self.system.server(),
            np.array([min(self._context(lengths.mean * (1.0 + lengths.spread**2)), most)]),
        )
        room = int(float(held[0]) * layout.pp)
        require(
            room >= 1,
            what=f"rollouts of {deployment.model.name} on {layout.label()}",
            given="no memory for one answer beside the weights",
            allowed="more chips per replica, a narrower precision or a shorter answer",
        )
        return max(1, min(room, self.system.stack.scheduler.max_num_seqs * layout.pp))

    def _context(self, length: float) -> float:
        """Context in the middle of an answer [tokens]."""
        return self.prompt_len + (self.tools.tokens + length) / 2.0

    def token_s(self, running: Array, context: Array) -> Array:
        """Time in which each of the running sequences of a rank gains a token, (points,) [s].

        Args:
            running: sequences, (points,) [sequences].
            context: of them on average, (points,) [tokens].
        """
        speculation, each = self.engine.speculation, running / self.deployment.layout.pp
        batch = Batch(decode_sequences=each, decode_tokens=speculation.verified_tokens, context_len=context)
        step_s = self.engine.decode_s(batch, self.engine.time_table(False), two_batch_overlap=False)
        return (step_s + self.engine.drafts_s(each, context) + self.beside_s) / speculation.tokens_per_step

    def prefill_s(self, sequences: float) -> float:
        """Prompts of a rank and what tools return, in full passes [s]."""
        tokens = sequences * (self.prompt_len / self.shared + self.tools.tokens)
        full = max(1.0, self.system.stack.scheduler.max_batched_tokens / self.prompt_len)
        batch = Batch(prefill_sequences=np.array([full]), chunk_tokens=self.prompt_len)
        device = self.engine.seconds(batch, self.engine.time_table(False), two_batch_overlap=False)
        one = self.engine.with_prompts_s(0.0, device, tokens=full * self.prompt_len)
        return float(np.ravel(one)[0]) * tokens / (full * self.prompt_len)

    def batch(self, answers: int, lengths: AnswerLengths) -> Rollout:
        """A batch that starts together; the fullest rank has the longest answer of all."""
        per_rank = -(-answers // self.ranks)
        own = lengths.sorted_lengths(per_rank)
        own[-1] = lengths.sorted_lengths(answers)[-1]
        slots = self.slots(lengths)
        if self.tools.pauses:
            passed, running = self._turn_by_turn(own, slots)
        else:
            clock, running, age = emptying(own, slots)
            middle = (clock[1:] + clock[:-1]) / 2.0
            steps = self.token_s(running, self.prompt_len + self.tools.tokens / 2.0 + middle - age)
            passed = np.concatenate([[0.0], np.cumsum(np.diff(clock) * steps)])
        prefill = self.prefill_s(per_rank)
        return Rollout(
            seconds=prefill + float(passed[-1]),
            prefill_s=prefill,
            half_s=prefill + float(passed[(passed.size - 1) // 2]),
            clock_s=prefill + passed,
            running=np.concatenate([running, [0.0]]) * self.ranks,
            slots=slots,
            per_rank=per_rank,
            tokens=answers * lengths.mean,
        )

    def _turn_by_turn(self, lengths: Array, slots: int) -> tuple[Array, Array]:
        """When the number of running sequences of a rank changes, (events + 1,) [s], and that number, (events,)."""
        most = min(slots, lengths.size)
        sequences = np.arange(1.0, most + 1.0)
        context = np.full(most, self._context(float((lengths**2).mean() / lengths.mean())))
        pauses = self.tools.drawn(lengths.size, np.random.default_rng(_SEED))
        return turn_by_turn(lengths, pauses, slots, self.token_s(sequences, context))

    def steady_s(self, answers: int, lengths: AnswerLengths, *, in_flight: float, whole_in: float) -> float:
        """Time of a batch where others follow without a pause [s].

        Args:
            in_flight: answers that may run at once on all ranks [count].
            whole_in: batches within which an answer must end; infinite for partial rollouts [count].
        """
        slots = min(float(self.slots(lengths)), in_flight / self.ranks)
        own = lengths.sorted_lengths(min(answers, 4096))
        context = self._context(float((own**2).mean() / own.mean()))
        each, away_s = answers / self.ranks, self.tools.pauses * self.tools.seconds
        load = np.geomspace(min(0.05, slots / 2.0), slots, 64)
        steps = self.token_s(load, np.full(load.size, context))
        # a batch takes each · mean tokens at load / token_s tokens a second
        times = each * lengths.mean * steps / load + self.prefill_s(each)
        whole = (float(own[-1]) * steps + away_s) / whole_in
        # those that wait for tools hold a slot too (Little's law)
        held = load * (1.0 + away_s / (lengths.mean * steps))
        return float(np.min(np.where(held <= max(slots, float(held[0])), np.maximum(times, whole), np.inf)))


def under_ray(system: System) -> System:
    """The system where Ray drives the processes of an engine, as where one runs on several chips.

    Source: github.com/NVIDIA-NeMo/RL, v0.4.0 to v0.6.0, nemo_rl/models/generation/vllm/vllm_worker.py
        (`distributed_executor_backend`).
    """
    stack, numbers = system.stack, system.calibration
    host = stack.host.under_ray()
    longer_s = host.s_per_step - stack.host.s_per_step
    return replace(
        system,
        stack=replace(stack, host=host),
        calibration=replace(numbers, host_s_per_step=numbers.host_s_per_step + longer_s),
    )


def emptying(lengths: Array, slots: int) -> tuple[Array, Array, Array]:
    """The clock of a rank that starts its answers as slots become free.

    Args:
        lengths: of the answers, (n,) [tokens]; where they do not all fit at once, they start in random order.
        slots: sequences that run at once [count].

    Returns:
        (clock at which the number of running sequences changes, (events + 1,) [tokens]; running between two of them,
        (events,); mean start of those that run, (events,) [tokens]).

    >>> clock, running, age = emptying(np.array([1.0, 2.0, 4.0]), 2)
    >>> float((np.diff(clock) * running).sum())
    7.0
    """
    count = lengths.size
    if slots >= count:
        return np.concatenate([[0.0], np.sort(lengths)]), np.arange(count, 0, -1).astype(float), np.zeros(count)
    queue = [float(lengths[i]) for i in np.random.default_rng(_SEED).permutation(count)]
    heap = [(queue[i], 0.0) for i in range(slots)]
    heapq.heapify(heap)
    waiting, started = slots, 0.0
    clock: list[float] = [0.0]
    running: list[float] = []
    age: list[float] = []
    while heap:
        running.append(float(len(heap)))
        age.append(started / len(heap))
        end, start = heapq.heappop(heap)
        clock.append(end)
        started -= start
        if waiting < count:
            heapq.heappush(heap, (end + queue[waiting], end))
            started += end
            waiting += 1
    return np.array(clock), np.array(running), np.array(age)


def turn_by_turn(lengths: Array, pauses: Array, slots: int, token_s: Array) -> tuple[Array, Array]:
    """The times of a rank whose answers wait for tools between their turns.

    Args:
        lengths: of the answers, (n,) [tokens]; each turn has an equal part. Where answers do not all fit at once, they
            start in this order; one that waits keeps its place.
        pauses: between the turns of each answer, (n, turns - 1) [s].
        slots: answers that are under way at once [count].
        token_s: time in which each running sequence gains a token, by their number from 1, (slots,) [s].

    Returns:
        (time at which the number of running sequences changes, (events + 1,) [s]; running between two of them,
        (events,)).

    >>> times, running = turn_by_turn(np.array([4.0]), np.array([[10.0]]), 1, np.array([0.5]))
    >>> times.tolist(), running.tolist()
    ([0.0, 1.0, 11.0, 12.0], [1.0, 0.0, 1.0])
    """
    turns = pauses.shape[1] + 1
    each, waits = (lengths / turns).tolist(), pauses.tolist()
    under_way = min(slots, lengths.size)
    running = [(each[i], i, 0) for i in range(under_way)]  # (tokens at which the turn ends, answer, turn)
    heapq.heapify(running)
    away: list[tuple[float, int, int]] = []  # (second of its return, answer, next turn)
    tokens, now, started = 0.0, 0.0, under_way
    times, counts = [0.0], list[float]()
    while running or away:
        counts.append(float(len(running)))
        end_s = now + (running[0][0] - tokens) * token_s[len(running) - 1] if running else np.inf
        if away and away[0][0] <= end_s:
            back_s, answer, turn = heapq.heappop(away)
            if running:
                tokens += (back_s - now) / token_s[len(running) - 1]
            now = back_s
            heapq.heappush(running, (tokens + each[answer], answer, turn))
        else:
            tokens, answer, turn = heapq.heappop(running)
            now = float(end_s)
            if turn + 1 < turns:
                heapq.heappush(away, (now + waits[answer][turn], answer, turn + 1))
            elif started < lengths.size:
                heapq.heappush(running, (tokens + each[started], started, 0))
                started += 1
        times.append(now)
    return np.array(times), np.array(counts)

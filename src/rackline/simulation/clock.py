"""Time of a pass: from a deployment's compiled pass tables, or from a linear model for tests and experiments.

Between events only the cached tokens of the decoding sequences grow, and the time of a pass is linear in them once
every kind of attention reads either all of the context or a fixed part of it. `line` gives this linear function, so
that thousands of steps cost no more than one to evaluate; where the time is not linear, `steps` evaluates each step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, Protocol

import numpy as np

from rackline.parallel import Deployment
from rackline.passes.features import Array
from rackline.serving.closed_loop import engine_of
from rackline.serving.stack import IDEAL, Stack
from rackline.serving.steady import Engine, behind
from rackline.serving.workload import PLAIN, Speculation
from rackline.simulation.pass_call import FAR, Table, compiled, pairs_in


class Line(NamedTuple):
    """A decode step as base_s + per_kv_s · kv_tokens + per_longest_s · longest, for kv_tokens in a range."""

    base_s: float
    per_kv_s: float
    per_longest_s: float
    from_kv: float = 0.0
    to_kv: float = inf
    from_context: float = 0.0


class Chunk(NamedTuple):
    """A chunk of a prompt in a pass: new tokens after a prefix that is cached already."""

    tokens: int
    prefix: int


class Clock(Protocol):
    """Time of a pass of one rank.

    `group_tokens` are the tokens of all ranks that share experts. A step with k draft tokens verifies `verified` = k +
    1 tokens. From a context of `straight_from` tokens on, attention reads a linear function of the context.
    """

    @property
    def verified(self) -> int: ...

    @property
    def tokens_per_step(self) -> float: ...

    @property
    def straight_from(self) -> float: ...

    def bends(self, sequences: int, group_tokens: float) -> Sequence[float] | None:
        """KV tokens at which a decode step changes its slope [tokens], ascending; None where it has none."""
        ...

    def line(self, sequences: int, group_tokens: float, kv_tokens: float = inf) -> Line | None:
        """The decode step as a linear function around `kv_tokens`; None where it is not linear."""
        ...

    def straight(self, sequences: int, kv_tokens: Any, longest: Any, group_tokens: float) -> Any:
        """A decode step where no context is below `straight_from` [s]; tokens are scalars, or arrays of one shape."""
        ...

    def steps(self, contexts: Array, advance: Array, group_tokens: float) -> Array:
        """Decode steps [s], in the shape of `advance`: the tokens by which each context has grown at that step."""
        ...

    def prompts(
        self,
        sequences: int,
        kv_tokens: float,
        longest: float,
        chunks: Sequence[Chunk],
        group_tokens: float,
        alone_s: float,
        *,
        others_decode: bool = False,
    ) -> float:
        """A pass with prompts [s].

        Args:
            alone_s: the same pass without them, 0 when nothing decodes in it [s].
            others_decode: whether ranks that share experts decode in it without prompts of their own.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainClock:
    """base_s + per_sequence_s · sequences + per_kv_s · kv_tokens + per_prompt_token_s · prompt tokens [s]."""

    base_s: float = 0.0
    per_sequence_s: float = 0.0
    per_kv_s: float = 0.0
    per_prompt_token_s: float = 0.0
    verified: int = 1
    tokens_per_step: float = 1.0

    @property
    def straight_from(self) -> float:
        """0: all of it is straight."""
        return 0.0

    def bends(self, sequences: int, group_tokens: float) -> Sequence[float] | None:
        """It has none."""
        return ()

    def line(self, sequences: int, group_tokens: float, kv_tokens: float = inf) -> Line | None:
        """The linear model itself."""
        return Line(self.base_s + self.per_sequence_s * sequences, self.per_kv_s, 0.0)

    def straight(self, sequences: int, kv_tokens: Any, longest: Any, group_tokens: float) -> Any:
        """The linear model itself."""
        return self.base_s + self.per_sequence_s * sequences + self.per_kv_s * kv_tokens

    def steps(self, contexts: Array, advance: Array, group_tokens: float) -> Array:
        """The linear model, step by step."""
        kv = contexts.sum() + len(contexts) * advance
        return self.base_s + self.per_sequence_s * len(contexts) + self.per_kv_s * kv

    def prompts(
        self,
        sequences: int,
        kv_tokens: float,
        longest: float,
        chunks: Sequence[Chunk],
        group_tokens: float,
        alone_s: float,
        *,
        others_decode: bool = False,
    ) -> float:
        """The same base plus the prompt tokens."""
        tokens = sum(chunk.tokens for chunk in chunks)
        decode = self.base_s + self.per_sequence_s * sequences + self.per_kv_s * kv_tokens
        return decode + self.per_prompt_token_s * tokens


@dataclass(slots=True, kw_only=True)
class TableClock:
    """Pass times of a deployment under a serving stack, with draft steps if it speculates."""

    engine: Engine
    table: Table
    draft: Table | None
    drafts: int
    verified: int
    tokens_per_step: float
    # (sequences, tokens of the group) → KV tokens at which the step bends, and lines between them by place
    lines: dict[tuple[int, float], tuple[tuple[float, ...], dict[int, Line]] | None] = field(
        default_factory=dict[tuple[int, float], "tuple[tuple[float, ...], dict[int, Line]] | None"]
    )
    floor_s: float = 0.0
    two_batch_overlap: bool = False
    straight_from: float = field(init=False)
    hosts: dict[int, float] = field(default_factory=dict[int, float])  # host time of a decode step by its sequences

    def __post_init__(self) -> None:
        tables = [self.table] if self.draft is None else [self.table, self.draft]
        self.straight_from = max((kind.start for table in tables for kind in table.kinds), default=0.0)

    @classmethod
    def of(
        cls,
        deployment: Deployment,
        stack: Stack = IDEAL,
        speculation: Speculation = PLAIN,
        *,
        two_batch_overlap: bool = False,
    ) -> TableClock:
        """Compile the tables of a deployment.

        Args:
            two_batch_overlap: whether passes run as two half batches, one computing while the other communicates.
        """
        engine = engine_of(deployment, stack, speculation)
        table = compiled(
            engine,
            engine.table,
            float(engine.stage_imbalance),
            int(speculation.verified_tokens),
            two_batch_overlap=two_batch_overlap,
        )
        draft = compiled(engine, engine.draft, 1.0, 1) if engine.draft is not None else None
        return cls(
            engine=engine,
            table=table,
            draft=draft,
            drafts=speculation.draft_tokens,
            verified=int(speculation.verified_tokens),
            tokens_per_step=speculation.tokens_per_step,
            floor_s=engine.num_layers * stack.graphs.eager_s_per_layer,
            two_batch_overlap=two_batch_overlap,
        )

    def bends(self, sequences: int, group_tokens: float) -> Sequence[float] | None:
        """Where a roof of some row becomes the higher one; None where the host launches kernels, or streams cross."""
        if self.straight_from >= FAR or self._host_s(sequences):
            return None
        found = _bends(self.table, sequences, sequences * self.verified, group_tokens, self._adapters(sequences))
        if self.draft is not None and found is not None:
            also = _bends(self.draft, sequences, sequences, group_tokens / self.verified, self._adapters(sequences))
            found = None if also is None else found + also
        return None if found is None else sorted(found)

    def line(self, sequences: int, group_tokens: float, kv_tokens: float = inf) -> Line | None:
        """The decode step between two bends, or beyond the last one."""
        key = (sequences, group_tokens)
        if key not in self.lines:
            bends = self.bends(sequences, group_tokens)
            self.lines[key] = None if bends is None else ((0.0, *bends, inf), {})
        known = self.lines[key]
        if known is None:
            return None
        ends, lines = known
        place = 0 if len(ends) == 2 else min(bisect_right(ends, kv_tokens), len(ends) - 1) - 1
        line = lines.get(place)
        if line is None:
            low, high = ends[place], ends[place + 1]
            span = (high if high < inf else low + max(low, 1e6)) - low
            first = self.straight(sequences, low, 0.0, group_tokens)
            per_kv = (self.straight(sequences, low + span, 0.0, group_tokens) - first) / span
            per_longest = (self.straight(sequences, low, 1e6, group_tokens) - first) / 1e6
            line = Line(first - per_kv * low, per_kv, per_longest, low, high, self.straight_from)
            lines[place] = line
        return line

    def straight(self, sequences: int, kv_tokens: Any, longest: Any, group_tokens: float) -> Any:
        """A step from the sums over its sequences."""
        seconds = self._straight(self.table, sequences, kv_tokens, longest, self.verified, group_tokens)
        host_s = self._host_s(sequences)
        if host_s:
            seconds = (seconds**4 + host_s**4) ** 0.25
        if self.draft is not None:
            one = self._straight(self.draft, sequences, kv_tokens, longest, 1, group_tokens / self.verified)
            seconds = seconds + self.drafts * one
        return seconds

    def _straight(
        self, table: Table, sequences: int, kv_tokens: Any, longest: Any, verified: int, group_tokens: float
    ) -> Any:
        reads = [
            (kind.a * sequences + kind.b * kv_tokens, kind.a + kind.b * longest) for kind, *_ in table.places.kinds
        ]
        return self._called(table, sequences, kv_tokens, reads, verified, group_tokens)

    def _called(
        self,
        table: Table,
        sequences: int,
        kv_tokens: Any,
        reads: Sequence[tuple[Any, Any]],
        verified: int,
        group_tokens: float,
        chunks: Sequence[Chunk] = (),
    ) -> Any:
        """Kernels of a pass [s].

        Args:
            reads: tokens that each kind of attention reads in all sequences, and in the longest [tokens].
            chunks: of prompts in it.
        """
        at = table.places
        decoded = float(sequences * verified)
        values: list[Any] = [0.0] * (len(table.order) + 1)
        values[at.tokens] = values[at.logit_rows] = values[at.decode_tokens] = decoded
        values[at.group_tokens] = float(group_tokens)
        values[at.decode_sequences] = float(sequences)
        values[at.has_decode] = 1.0 if sequences else 0.0
        if at.adapters_touched < len(table.order):
            values[at.adapters_touched] = self._adapters(sequences + len(chunks))
        if not at.kinds:
            values[at.kv_of_all] = kv_tokens
        for (_, kv_at, pairs_at, longest_at, _), (read, longest) in zip(at.kinds, reads, strict=True):
            values[kv_at], values[pairs_at], values[longest_at] = read, read * verified, longest
        if chunks:
            new = sum([chunk.tokens for chunk in chunks])
            values[at.tokens], values[at.logit_rows] = decoded + new, decoded + len(chunks)
            values[at.has_prefill], values[at.prefill_tokens] = 1.0, new
            values[at.chunk_tokens] = max([chunk.tokens for chunk in chunks])
            values[at.chunk_prefix_tokens] = sum([chunk.prefix for chunk in chunks])
            causal = sum([tokens * (prefix + 0.5 * (tokens + 1.0)) for tokens, prefix in chunks])
            for kind, _, _, _, attended_at in at.kinds:
                values[attended_at] = causal if kind.causal else sum(pairs_in(kind.law, *chunk) for chunk in chunks)
        values.pop()
        call = table.call_arrays if isinstance(kv_tokens, np.ndarray) else table.call
        return (call(*values) + table.skew_s) * table.stage_imbalance

    def _host_s(self, sequences: int) -> float:
        """Host time of a decode step [s]."""
        found = self.hosts.get(sequences)
        if found is None:
            found = self.hosts[sequences] = float(
                self.engine.host_s(sequences * self.verified, sequences, prompts=False)
            )
        return found

    def steps(self, contexts: Array, advance: Array, group_tokens: float) -> Array:
        """Each step by itself."""
        seconds = self._decode(self.table, contexts, advance, self.verified, group_tokens)
        seconds = behind(seconds, self._host_s(len(contexts)))
        if self.draft is not None:
            one = self._decode(self.draft, contexts, advance, 1, group_tokens / self.verified)
            seconds = seconds + self.drafts * one
        return seconds

    def prompts(
        self,
        sequences: int,
        kv_tokens: float,
        longest: float,
        chunks: Sequence[Chunk],
        group_tokens: float,
        alone_s: float,
        *,
        others_decode: bool = False,
    ) -> float:
        """A pass with prompts as the stack runs it: slower prefill, no CUDA graph."""
        table, reads = self.table, [(0.0, 0.0)] * len(self.table.kinds)
        if sequences:
            mean = kv_tokens / sequences
            reads = [
                (
                    kind.a * sequences + kind.b * kv_tokens if mean >= kind.start else sequences * kind.read(mean),
                    kind.read(longest),
                )
                for kind in table.kinds
            ]
        device = self._called(table, sequences, kv_tokens, reads, self.verified, group_tokens, chunks)
        if not chunks:
            return device
        decoded, tokens = sequences * self.verified, sum([chunk.tokens for chunk in chunks])
        stack = self.engine.stack
        if sequences and (stack.graphs.captured_tokens or stack.host.s_per_sequence):
            alone_s = float(self.engine.without_host_s(alone_s, sequences))
        held = decoded + tokens <= stack.graphs.held_tokens and not (others_decode and stack.graphs.need_all_ranks)
        slower = 1.0 if held else stack.graphs.prefill_slowdown
        stretched = max(device - alone_s, 0.0) * slower + alone_s
        host_s = self.floor_s
        if stack.graphs.held_tokens or stack.host.s_per_sequence:
            launches_s = 0.0 if held else self.floor_s
            host_s = launches_s + stack.host.s_per_sequence * sequences
        return (stretched**4 + host_s**4) ** 0.25 if host_s else stretched

    def _adapters(self, sequences: int) -> float:
        """Different adapters that decoding sequences use on average [count]."""
        adapters = self.engine.table.adapters
        return 0.0 if adapters is None else float(adapters.adapters_touched(float(sequences)))

    def _decode(self, table: Table, contexts: Array, advance: Array, verified: int, group: float) -> Array:
        grown = contexts[None, :] + advance[:, None]
        reads: list[tuple[Any, Any]] = []
        for kind in table.kinds:
            each = np.asarray(kind.law.kv_read_tokens(grown), dtype=float)
            longest = np.asarray(kind.law.kv_read_tokens(grown.max(axis=1)), dtype=float)
            reads.append((np.broadcast_to(each, grown.shape).sum(axis=1), longest))
        seconds = self._called(table, len(contexts), grown.sum(axis=1), reads, verified, group)
        return np.broadcast_to(np.asarray(seconds, dtype=float), advance.shape)


def _bends(table: Table, sequences: int, tokens: int, group_tokens: float, adapters: float) -> list[float] | None:
    """KV tokens at which a row of a table changes from one roof to the other; None where contexts decide it."""
    found: list[float] = []
    for row in table.kv_rows:
        if row.per_longest:
            return None
        rest = row.constant + row.per_token * tokens + row.per_group_token * group_tokens
        bend = -(rest + row.per_sequence * sequences + row.per_adapter * adapters) / row.per_kv
        if bend > 0.0:
            found.append(bend)
    return found

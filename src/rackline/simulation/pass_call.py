"""A compiled pass table for the simulator: what each attention kind reads, and where pass time is piecewise linear."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any, NamedTuple, cast

import numpy as np

from rackline.passes import features as f
from rackline.passes.features import BlockwiseLaw, ReadLaw
from rackline.passes.javascript import compile_table, parameters_of
from rackline.serving.steady import Engine


class KvRow(NamedTuple):
    """An absolute value in a decode step: its constant, and its coefficients."""

    constant: float
    per_token: float
    per_group_token: float
    per_sequence: float
    per_adapter: float
    per_kv: float
    per_longest: float


_OTHERS = {
    f.ONE: 0, f.HAS_DECODE: 0, f.TOKENS: 1, f.LOGIT_ROWS: 1, f.DECODE_TOKENS: 1, f.GROUP_TOKENS: 2,
    f.DECODE_SEQUENCES: 3, f.ADAPTERS_TOUCHED: 4,
}  # fmt: skip
"""Feature → coefficient of a `KvRow`."""
FAR = float(1 << 24)  # a context beyond which every kind of attention reads a linear function of the context


@dataclass(frozen=True, slots=True)
class Kind:
    """An attention kind: reads a + b · context from `start` on."""

    label: str
    law: ReadLaw
    a: float
    b: float
    start: float
    causal: bool  # whether each token of a chunk attends to all tokens before it

    def read(self, context: float) -> float:
        """Tokens that it reads of a context [tokens]."""
        return self.a + self.b * context if context >= self.start else read_of(self.law, context)


def read_of(law: ReadLaw, context: float) -> float:
    """Tokens that a law reads of one context [tokens]."""
    return float(np.asarray(law.kv_read_tokens(np.float64(context))))


def pairs_in(law: ReadLaw, chunk: float, before: float) -> float:
    """Pairs of tokens that a chunk of a prompt attends to behind earlier tokens [count]."""
    return float(np.asarray(law.attention_pairs(chunk, before)))


_Calls = tuple[Callable[..., float], Callable[..., Any]]
"""A table as a function of numbers, and of arrays."""


@dataclass(slots=True, kw_only=True)
class Table:
    """One pass table, called with the features of a rank; compiled for its first call; the loop in C makes none."""

    order: tuple[str, ...]
    kinds: tuple[Kind, ...]
    kv_rows: tuple[KvRow, ...]
    stage_imbalance: float
    skew_s: float
    places: PromptPlaces
    _compile: Callable[[], _Calls]
    _calls: _Calls | None = field(init=False, default=None)

    @property
    def calls(self) -> _Calls:
        """The compiled functions."""
        if self._calls is None:
            self._calls = self._compile()
        return self._calls

    @property
    def call(self) -> Callable[..., float]:
        """The function of numbers."""
        return self.calls[0]

    @property
    def call_arrays(self) -> Callable[..., Any]:
        """The function of arrays."""
        return self.calls[1]


class PromptPlaces(NamedTuple):
    """Positions of the features of a pass with prompts in a call; those that the table lacks get the last position."""

    tokens: int
    logit_rows: int
    group_tokens: int
    decode_sequences: int
    decode_tokens: int
    has_decode: int
    has_prefill: int
    chunk_tokens: int
    prefill_tokens: int
    chunk_prefix_tokens: int
    kv_of_all: int
    adapters_touched: int
    kinds: tuple[tuple[Kind, int, int, int, int], ...]  # with KV tokens, KV pairs, longest context, attention pairs


def _places(order: Sequence[str], kinds: Sequence[Kind]) -> PromptPlaces:
    at = {name: index for index, name in enumerate(order)}
    behind = len(order)
    names = (
        f.TOKENS, f.LOGIT_ROWS, f.GROUP_TOKENS, f.DECODE_SEQUENCES, f.DECODE_TOKENS, f.HAS_DECODE, f.HAS_PREFILL,
        f.CHUNK_TOKENS, f.PREFILL_TOKENS, f.CHUNK_PREFIX_TOKENS, f.kv_tokens("all"), f.ADAPTERS_TOUCHED,
    )  # fmt: skip

    def of(kind: Kind) -> tuple[Kind, int, int, int, int]:
        per_kind = (f.kv_tokens, f.kv_pairs, f.max_context, f.attention_pairs)
        kv, pairs, longest, attended = (at.get(name(kind.label), behind) for name in per_kind)
        return kind, kv, pairs, longest, attended

    return PromptPlaces(*(at.get(name, behind) for name in names), kinds=tuple(of(kind) for kind in kinds))


def is_extensive(feature: str) -> bool:
    """Whether a feature is halved when the batch is."""
    return feature.partition(":")[0] not in (f.ONE, f.HAS_DECODE, f.HAS_PREFILL, f.CHUNK_TOKENS, "max_context")


def _of_two_halves(call: Callable[..., Any], order: Sequence[str]) -> Callable[..., Any]:
    """Two half batches in sequence, from the pass of one of them."""
    shares = tuple(0.5 if is_extensive(name) else 1.0 for name in order)

    def both(*values: Any) -> Any:
        return 2.0 * call(*[value * share for value, share in zip(values, shares, strict=False)])

    return both


def compiled(
    engine: Engine, table: Any, stage_imbalance: float, verified: int, *, two_batch_overlap: bool = False
) -> Table:
    """Compile a pass table.

    Args:
        stage_imbalance: slowest over mean pipeline stage.
        verified: tokens per sequence in a decode step: 1, and the drafts to verify [tokens].
        two_batch_overlap: whether the batch runs as two halves, one computing while the other communicates.
    """
    policy = "overlap" if two_batch_overlap else None
    times = table.time_table(policy)
    order = parameters_of(times, table.experts)
    block = table.calibration.context_block
    laws = {label: law if block == 1 else BlockwiseLaw(law, block) for label, law in table.kinds.items()}
    kinds = tuple(kind_of(label, law) for label, law in laws.items())
    by_label = {kind.label: kind for kind in kinds}
    rows: list[KvRow] = []
    several = len(times.streams) > 1  # the maximum of several streams changes slope where they cross
    for stream in times.streams:
        differences = list(stream.difference[0])
        for choice in stream.choices:
            differences += list(choice.difference[0])
        for row in differences:
            named = dict(zip(times.feature_names, row.tolist(), strict=True))
            if two_batch_overlap:
                named = {name: value * (0.5 if is_extensive(name) else 1.0) for name, value in named.items()}
            rows.append(_kv_row(named, by_label, verified))
    if several:
        rows.append(KvRow(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0))

    def calls() -> _Calls:
        step = compile_table(table, policy)
        if two_batch_overlap:
            return _of_two_halves(step.call, order), _of_two_halves(step.call_arrays, order)
        return step.call, step.call_arrays

    return Table(
        _compile=calls,
        order=order,
        kinds=kinds,
        kv_rows=tuple(row for row in rows if row.per_kv or row.per_longest),
        stage_imbalance=stage_imbalance,
        skew_s=float(cast("float", engine.skew_s())) if table is engine.table else 0.0,
        places=_places(order, kinds),
    )


def _kv_row(row: dict[str, float], kinds: dict[str, Kind], verified: int) -> KvRow:
    others = [0.0] * 5
    per_kv = per_longest = 0.0
    for name, value in row.items():
        what, _, label = name.partition(":")
        kind = kinds.get(label)
        if what in ("kv_tokens", "kv_pairs") and value:
            value = value * verified if what == "kv_pairs" else value
            per_kv += value * (kind.b if kind else 1.0)
            others[3] += value * (kind.a if kind else 0.0)
        elif what == "max_context":
            per_longest += value * (kind.b if kind else 1.0)
        elif name in _OTHERS:
            others[_OTHERS[name]] += value
    return KvRow._make((*others, per_kv, per_longest))


def kind_of(label: str, law: ReadLaw) -> Kind:
    """Find the context from which a kind reads a + b · context."""
    b = (read_of(law, 2.0 * FAR) - read_of(law, FAR)) / FAR
    a = read_of(law, FAR) - b * FAR

    def straight(context: float) -> bool:
        return abs(read_of(law, context) - (a + b * context)) <= 1e-9 * max(abs(a), b * context, 1.0)

    low, high = 0.0, FAR
    if straight(0.0) and straight(1.0) and straight(FAR / 3.0):
        high = 0.0
    else:
        while high - low > 1.0:
            middle = (low + high) // 2.0
            low, high = (low, middle) if straight(middle) else (middle, high)
        if not straight(FAR / 3.0):
            high = 2.0 * FAR
    places = ((1.0, 0.0), (7.0, 3.0), (513.0, 4097.0), (8192.0, 65536.0))
    causal = all(
        abs(pairs_in(law, new, before) - new * (before + 0.5 * (new + 1.0))) <= 1e-9 * new * 1e5
        for new, before in places
    )
    return Kind(label, law, a, b, high, causal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """What attention reads of a context: the sum of weight · min(context + shift, reach) over parts; and the pairs of a
    prompt, the same over its tokens and at most a share of all."""

    parts: list[tuple[float, float]]
    shift: float
    share: float = inf

    def read(self, context: float) -> float:
        return sum(weight * min(context + self.shift, reach) for weight, reach in self.parts)

    def pairs(self, chunk: float, before: float) -> float:
        found = 0.0
        for weight, reach in self.parts:
            growing = min(max(reach - before, 0.0), chunk)
            behind = (chunk - growing) * reach if growing < chunk else 0.0
            found += weight * (growing * before + growing * (growing + 1.0) / 2.0 + behind)
        return min(found, self.share * (chunk * before + chunk * (chunk + 1.0) / 2.0))


def law_of(kind: Kind) -> Law | None:
    """The parts of a kind's law; None where it has none, as that of root-sparse attention."""
    law = kind.law
    block = law.block if isinstance(law, BlockwiseLaw) else 0
    parts = parts_of(law.law if isinstance(law, BlockwiseLaw) else law)
    if parts is None:
        return None
    found = Law(parts=parts, shift=0.5 * block)
    if not kind.causal and pairs_in(law, 1.0, 0.0) < found.pairs(1.0, 0.0):
        found = replace(found, share=pairs_in(law, 1.0, 0.0))
    contexts = [0.0, 1.0, 2.5, 100.0, 511.5, 777.7, 2048.0, 4097.0, 30_000.0, 131_073.0, 1e6]
    chunks = [(1.0, 0.0), (7.0, 3.0), (513.0, 4097.0), (8192.0, 65536.0), (2000.0, 0.0), (16_384.0, 100.0)]
    both = [(found.read(x), read_of(law, x)) for x in contexts]
    both += [] if kind.causal else [(found.pairs(*chunk), pairs_in(law, *chunk)) for chunk in chunks]
    return found if all(abs(mine - its) <= 1e-12 * max(its, 1.0) for mine, its in both) else None


def parts_of(law: ReadLaw) -> list[tuple[float, float]] | None:
    """Weights and reaches of a law that is linear between few bends, from its slopes."""

    read = partial(read_of, law)

    def bends(low: float, high: float) -> list[float] | None:
        """Contexts at which the slope changes, or None where it changes too often."""
        if high - low < 4.0:
            return None
        rise, fall = read(low + 1.0) - read(low), read(high) - read(high - 1.0)
        if abs(rise - fall) <= 1e-12:
            return []
        at = (read(high) - fall * high - (read(low) - rise * low)) / (rise - fall)
        if not low < at < high:
            return None
        if abs(read(at) - (read(low) + rise * (at - low))) <= 1e-9 * max(read(at), 1.0):
            return [at]
        before, after = bends(low, at), bends(at, high)
        return None if before is None or after is None else before + after

    found = bends(0.0, FAR)
    if found is None or len(found) > 4:
        return None
    ends = [0.0, *(round(at, 9) for at in found), FAR]
    slopes = [(read(high) - read(low)) / (high - low) for low, high in itertools.pairwise(ends)]
    slopes.append(0.0)
    reaches = [*ends[1:-1], inf]
    parts = [(one - after, reach) for one, after, reach in zip(slopes, slopes[1:], reaches, strict=False)]
    return [(weight, reach) for weight, reach in parts if weight]

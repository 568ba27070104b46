"""Check every fit on the layer shapes of the catalogue's models against its siblings: other stacks on the same chip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from rackline.arch import Model, MoeFfn
from rackline.arch.attention import LATENT_KERNELS
from rackline.fitting.amounts import KV_TYPES, PREFILL_TYPES, PRODUCTS, Amounts, amounts
from rackline.fitting.fit import seconds
from rackline.fitting.solver import Values
from rackline.fitting.tables import Array, Measurements
from rackline.hardware import Chip

DISAGREEMENT = 1.5
_TP = (1, 8)
_TOKENS = (1.0, 8.0, 64.0, 512.0, 4096.0)
_DECODE = ((1.0, 4096.0), (16.0, 2048.0), (64.0, 2048.0), (64.0, 16384.0))
_PREFILL = ((1.0, 1024.0), (4.0, 2048.0), (1.0, 8192.0))
_BENCHMARK_ONLY = ("cached", "quantise_s")  # a pass finds no KV in the cache and quantises in the kernel before

LayerShapes = Mapping[str, Sequence[tuple[float, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Two stacks on one chip that differ by more than DISAGREEMENT on the layers of the catalogue's models.

    Args:
        chip, op_class, dtype: what was compared.
        slower, faster: stacks.
        ratio: median over shapes of slower / faster [1].
        largest_ratio: 90th percentile of it [1].
    """

    chip: str
    op_class: str
    dtype: str
    slower: str
    faster: str
    ratio: float
    largest_ratio: float


def layer_shapes(models: Iterable[Model]) -> dict[str, list[tuple[float, ...]]]:
    """Shapes of the layers of models, whole and over 8 chips, by table; sorted, without repeats."""
    found: dict[str, set[tuple[float, ...]]] = {}
    for model in models:
        for group in model.layer_groups:
            attention, ffn = group.attention, group.ffn
            projections = list(attention.projections(model.d_model))
            expansion = attention.expansion()
            projections += [expansion] if expansion else []
            if isinstance(ffn, MoeFfn):
                expert = (model.d_model, ffn.d_expert, ffn.experts_per_token, ffn.num_experts)
                for ep in _TP:
                    if ffn.num_experts % ep == 0:
                        cases = {(t, *map(float, expert), 1.0, float(ep)) for t in _TOKENS}
                        found.setdefault("moe", set()).update(cases)
            else:
                projections += list(ffn.projections(model.d_model))
            for tp in _TP:
                sizes = {(float(p.shard_out(tp)), float(p.shard_in(tp))) for p in projections}
                found.setdefault("gemm", set()).update((m, n, k) for m in _TOKENS for n, k in sizes)
                heads = float(np.ceil(attention.num_q_heads / tp))
                if attention.kernel in LATENT_KERNELS:
                    found.setdefault("mla_decode", set()).update((b, c, heads) for b, c in _DECODE)
                    found.setdefault("mla_prefill", set()).update((b, t, heads) for b, t in _PREFILL)
                    continue
                kv = float(np.ceil(attention.num_kv_heads / tp))
                gqa = (heads, kv, attention.decode_flop_per_pair / 4.0)
                found.setdefault("attention_decode", set()).update((b, c, *gqa) for b, c in _DECODE)
                found.setdefault("attention_prefill", set()).update((b, t, *gqa) for b, t in _PREFILL)
    return {name: sorted(shapes) for name, shapes in sorted(found.items())}


_COLUMNS = {
    "gemm": ("m", "n", "k"),
    "moe": ("tokens", "d_model", "d_ff", "top_k", "num_experts", "moe_tp", "ep"),
    "attention_decode": ("batch", "context", "q_heads", "kv_heads", "head_dim"),
    "attention_prefill": ("batch", "tokens", "q_heads", "kv_heads", "head_dim"),
    "mla_decode": ("batch", "context", "q_heads"),
    "mla_prefill": ("batch", "tokens", "q_heads"),
}


def _labels(op_class: str, dtype: str) -> tuple[str, ...]:
    """Label columns whose table has this data type."""
    if op_class in ("gemm", "moe"):
        return (next(name for name, product in PRODUCTS.items() if product.key == dtype),)
    if op_class.endswith("decode"):
        return ("bfloat16", next(name for name, key in KV_TYPES.items() if key == dtype))
    return next(pair for pair, (key, _, _) in PREFILL_TYPES.items() if key == dtype)


def layer_work(shapes: LayerShapes, chip: Chip, op_class: str, dtype: str) -> Amounts | None:
    """Amounts of the layer shapes of a class on a chip; None if no model has such a layer."""
    rows = shapes.get(op_class)
    if not rows:
        return None
    columns = dict(zip(_COLUMNS[op_class], np.array(rows, dtype=np.float64).T, strict=True))
    count = len(rows)
    table = Measurements(
        table=op_class,
        chip=chip.name,
        stack="",
        stack_version="",
        labels=_labels(op_class, dtype),
        columns=columns,
        words={"distribution": ("balanced",) * count} if op_class == "moe" else {},
        seconds=np.ones(count),
        families=np.zeros(count, dtype=np.int64),
    )
    return amounts(table, chip)


def in_a_pass(values: Values) -> Values:
    """Parameters as a pass uses them, without what only the benchmark has."""
    return {name: value for name, value in values.items() if name not in _BENCHMARK_ONLY}


def pass_seconds(values: Values, work: Amounts) -> Array:
    """Time of the layer shapes in a pass [s]."""
    return seconds(in_a_pass(values), work)


def disagreements(times: Mapping[tuple[str, str, str, str], Array]) -> list[Disagreement]:
    """Pairs of stacks that differ by more than DISAGREEMENT.

    Args:
        times: (chip, stack, class, data type) → seconds on the layer shapes.
    """
    out: list[Disagreement] = []
    for (one, first), (two, second) in combinations(sorted(times.items()), 2):
        if (one[0], one[2:]) != (two[0], two[2:]):
            continue
        ratio = float(np.median(first / second))
        if max(ratio, 1.0 / ratio) > DISAGREEMENT:
            slower, faster, ratios = (one, two, first / second) if ratio > 1 else (two, one, second / first)
            out.append(
                Disagreement(
                    chip=one[0],
                    op_class=one[2],
                    dtype=one[3],
                    slower=slower[1],
                    faster=faster[1],
                    ratio=max(ratio, 1.0 / ratio),
                    largest_ratio=float(np.quantile(ratios, 0.9)),
                )
            )
    return out

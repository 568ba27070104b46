"""Work of each measured operation: FLOP and bytes, as the rows of a pass count them.

The formulas are those of `rackline.parallel.work`, which the rows of a pass call too, over columns of a table.
Two counts are added: the `depth` that a kernel processes sequentially on any number of cores (the reduction of a
product, the keys of a query), and the `tiles` of work per core.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rackline.arch import Core, GroupedQueryAttention, MultiHeadLatentAttention
from rackline.arch.kinds import windowed_pairs
from rackline.errors import InputError
from rackline.fitting.tables import Array, Measurements
from rackline.hardware import Chip
from rackline.parallel.precision import storage_bytes
from rackline.parallel.work import TILE, AttentionWork, ExpertsWork, ProductWork
from rackline.passes.features import as_array

# Measured kernels of latent attention have DeepSeek's head; those of grouped attention scale with their own.
MLA_HEAD = MultiHeadLatentAttention(
    num_q_heads=1, q_lora_rank=0, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
)
UNIT_HEAD = GroupedQueryAttention(num_q_heads=1, num_kv_heads=1, head_dim=1)
CORES_WHEN_UNKNOWN = 128
_ALL = 1e12  # a window that no context reaches [tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiply:
    """Data types of a matrix product.

    Args:
        key: data type in a calibration.
        weights, activations: as stored.
        compute: data type whose peak is used.
        quantised: whether the measured times include a separate quantisation of the activations.
    """

    key: str
    weights: str
    activations: str
    compute: str
    quantised: bool = False

    @property
    def sizes(self) -> dict[str, float]:
        """Bytes of a weight and of an activation [bytes]."""
        return {
            "bytes_per_weight": storage_bytes(self.weights),
            "bytes_per_activation": storage_bytes(self.activations),
        }


PRODUCTS = {
    "bfloat16": Multiply(key="bf16", weights="bf16", activations="bf16", compute="bf16"),
    "fp8": Multiply(key="fp8", weights="fp8", activations="fp8", compute="fp8", quantised=True),
    "fp8_block": Multiply(key="fp8_block", weights="fp8", activations="fp8", compute="fp8", quantised=True),
    "nvfp4": Multiply(key="fp4", weights="fp4", activations="fp4", compute="fp4", quantised=True),
    "sq": Multiply(key="int8", weights="int8", activations="int8", compute="int8"),
    "int8_wo": Multiply(key="int8_bf16", weights="int8", activations="bf16", compute="bf16"),
    "int4_wo": Multiply(key="int4_bf16", weights="int4", activations="bf16", compute="bf16"),
    "w4afp8": Multiply(key="int4_fp8", weights="int4", activations="fp8", compute="fp8"),
    "w4a16_mxfp4": Multiply(key="mxfp4_bf16", weights="mxfp4", activations="bf16", compute="bf16"),
    "w4a8_mxfp4_mxfp8": Multiply(key="mxfp4_mxfp8", weights="mxfp4", activations="mxfp8", compute="fp8"),
}
KV_TYPES = {"bfloat16": "bf16", "fp8": "fp8"}
PREFILL_TYPES = {
    ("bfloat16", "bfloat16"): ("bf16", "bf16", "bf16"),
    ("bfloat16", "fp8"): ("bf16_fp8", "bf16", "fp8"),
    ("fp8", "fp8"): ("fp8", "fp8", "fp8"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Work of the rows of one table and its time at the chip's peaks; all arrays have shape (rows,).

    Args:
        op_class, dtype: key in a calibration.
        flop: work of the products [FLOP].
        hbm_bytes: memory traffic [bytes].
        compute_s: flop / peak [s].
        memory_s: hbm_bytes / bandwidth [s].
        cache_s: time to read the last-level cache's bytes from memory [s].
        quantise_memory_s: memory time of a separate quantisation (fp8 and fp4 products) [s].
        permute_memory_s: memory time of one pass of the routed tokens (moe) [s].
        depth: sequentially processed elements [count].
        tiles: tiles of work per core [count].
        launches: of its kernel [count].
        known_s: time of what is not fitted: the other rows of a measured module [s].
        others: further rows of the module that are fitted with it, under their own class.
    """

    op_class: str
    dtype: str
    flop: Array
    hbm_bytes: Array
    compute_s: Array
    memory_s: Array
    cache_s: Array
    quantise_memory_s: Array
    permute_memory_s: Array
    depth: Array
    tiles: Array
    launches: Array
    known_s: Array
    others: tuple[Amounts, ...] = ()

    def take(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Amounts:
        """A selection of the rows."""
        others = tuple(other.take(rows) for other in self.others)
        return replace(self, others=others, **{name: getattr(self, name)[rows] for name in _ARRAYS})

    def ideal_s(self) -> Array:
        """Time of the ideal roofline [s]: max(flop / peak, bytes / bandwidth), and what is known of other rows."""
        own = np.maximum(self.compute_s, self.memory_s) + self.known_s
        return sum((other.ideal_s() for other in self.others), own)


_ARRAYS = tuple(f.name for f in fields(Amounts) if f.name not in ("op_class", "dtype", "others"))


def joined(parts: Sequence[Amounts]) -> Amounts:
    """Rows of several tables of one class, concatenated."""
    others = tuple(joined(of_one) for of_one in zip(*(part.others for part in parts), strict=True))
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS}
    return replace(parts[0], others=others, **arrays)


def scattered(
    parts: Sequence[tuple[npt.NDArray[np.int64], Amounts]], rows: int, like: Amounts | None = None
) -> Amounts:
    """Work of a table of `rows` rows from that of some of them, by place; the rest does nothing."""

    def whole(name: str) -> Array:
        found = np.zeros(rows)
        for places, part in parts:
            found[places] = getattr(part, name)
        return found

    return replace(parts[0][1] if parts or like is None else like, **{name: whole(name) for name in _ARRAYS})


def amounts(measured: Measurements, chip: Chip) -> Amounts:
    """Count the work of the rows of a table of single kernels.

    Raises:
        InputError: a data type or distribution is unknown.
    """
    makers = {
        "gemm": _gemm,
        "attention_decode": _decode,
        "attention_prefill": _prefill,
        "mla_decode": _decode,
        "mla_prefill": _prefill,
        "moe": _moe,
        "latent_product": _latent_product,
    }
    return makers[measured.table](measured, chip)


def work_of(
    chip: Chip,
    *,
    op_class: str,
    dtype: str,
    compute: str,
    flop: Array,
    hbm_bytes: Array,
    quantise_bytes: Array | None = None,
    permute_bytes: Array | None = None,
    depth: Array | None = None,
    tiles: Array | None = None,
    launches: Array | None = None,
) -> Amounts:
    """Work with its times at the peaks of a chip; what is not given is nothing, but for one launch."""
    nothing = np.zeros_like(flop)
    peak = chip.flop_per_s(compute if chip.supports(compute) else "bf16")  # else converted and multiplied in bf16
    bandwidth = chip.hbm_bytes_per_s
    return Amounts(
        op_class=op_class,
        dtype=dtype,
        flop=flop,
        hbm_bytes=hbm_bytes,
        compute_s=flop / peak,
        memory_s=hbm_bytes / bandwidth,
        cache_s=nothing + (chip.l2_bytes or 0.0) / bandwidth,
        quantise_memory_s=nothing if quantise_bytes is None else quantise_bytes / bandwidth,
        permute_memory_s=nothing if permute_bytes is None else permute_bytes / bandwidth,
        depth=nothing if depth is None else depth,
        tiles=nothing if tiles is None else tiles / (chip.cores or CORES_WHEN_UNKNOWN),
        launches=nothing + 1.0 if launches is None else launches,
        known_s=nothing,
    )


def _known(measured: Measurements, what: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise InputError(what=f"{what} of {measured.key}", given=name, allowed=", ".join(known))


def _gemm(measured: Measurements, chip: Chip) -> Amounts:
    """m rows of n × k weights; the depth is k."""
    _known(measured, "dtype", measured.labels[0], list(PRODUCTS))
    product = PRODUCTS[measured.labels[0]]
    m, n, k = (measured.columns[name] for name in ("m", "n", "k"))
    work = ProductWork.of(k, n, **product.sizes)
    return work_of(
        chip,
        op_class="gemm",
        dtype=product.key,
        compute=product.compute,
        flop=work.flop * m,
        hbm_bytes=work.weight_bytes + work.row_bytes * m,
        quantise_bytes=work.quantise_bytes * m if product.quantised else None,
        depth=k,
    )


def _latent_product(measured: Measurements, chip: Chip) -> Amounts:
    """Queries into the latent, or latents to values: a product for each head, of its own weights."""
    _known(measured, "dtype", measured.labels[0], list(PRODUCTS))
    product, c = PRODUCTS[measured.labels[0]], measured.columns
    narrow, wide = MLA_HEAD.qk_nope_head_dim, MLA_HEAD.kv_lora_rank
    work = ProductWork.of(narrow, wide, **product.sizes)
    return work_of(
        chip,
        op_class="latent_product",
        dtype=product.key,
        compute=product.compute,
        flop=work.flop * c["tokens"] * c["q_heads"],
        hbm_bytes=(work.weight_bytes + work.row_bytes * c["tokens"]) * c["q_heads"],
        depth=np.array([wide if part == "post" else narrow for part in measured.words["part"]], dtype=float),
        tiles=np.ceil(c["tokens"] / TILE) * c["q_heads"],
    )


def _core(measured: Measurements) -> tuple[Core, Array | float, Array | float]:
    """The core of one head, and the numbers of query and KV heads."""
    c = measured.columns
    if measured.table.startswith("mla"):
        return MLA_HEAD, c["q_heads"], 1.0
    return UNIT_HEAD, c["q_heads"] * c["head_dim"], c["kv_heads"] * c["head_dim"]


def _window(columns: Mapping[str, Array]) -> Array:
    """Tokens that a query sees at most [tokens]; a table writes 0 where it sees all."""
    window = columns.get("window", np.zeros(1))
    return np.where(window > 0, window, _ALL)


def _decode(measured: Measurements, chip: Chip) -> Amounts:
    """The cache is read once for all query heads that share it."""
    _known(measured, "kv_dtype", measured.labels[1], list(KV_TYPES))
    c, kv = measured.columns, KV_TYPES[measured.labels[1]]
    core, heads, kv_heads = _core(measured)
    entry_bytes = core.kv_elements_per_token(1) * kv_heads * storage_bytes(kv)
    work = AttentionWork.decode(core, heads, entry_bytes)
    context = np.minimum(c["context"], _window(c))
    return work_of(
        chip,
        op_class=measured.table,
        dtype=kv,
        # kernels for an fp8 latent multiply in fp8: they exceed the peak of bf16
        compute=kv if core is MLA_HEAD else "bf16",
        flop=work.pair_flop * c["batch"] * context,
        hbm_bytes=c["batch"] * (entry_bytes * context + work.token_bytes),
        depth=context,
        tiles=c["batch"] * (1.0 if core is MLA_HEAD else c["kv_heads"]),
    )


def _prefill(measured: Measurements, chip: Chip) -> Amounts:
    """Causal pairs of whole prompts."""
    _known(measured, "dtype/kv_dtype", "/".join(measured.labels), ["/".join(known) for known in PREFILL_TYPES])
    key, compute, kv = PREFILL_TYPES[measured.labels[0], measured.labels[1]]
    c = measured.columns
    core, heads, kv_heads = _core(measured)
    work = AttentionWork.prefill(core, heads, kv_heads, core.kv_elements_per_token(1) * kv_heads * storage_bytes(kv))
    tokens = c["batch"] * c["tokens"]
    return work_of(
        chip,
        op_class=measured.table,
        dtype=key,
        compute=compute,
        flop=work.pair_flop * c["batch"] * as_array(windowed_pairs(c["tokens"], 0.0, _window(c))),
        hbm_bytes=work.token_bytes * tokens,
        depth=c["tokens"],
        tiles=tokens * c["q_heads"] / TILE,
    )


def _moe(measured: Measurements, chip: Chip) -> Amounts:
    """Gated experts of three matrices: weights of a touched expert once, FLOP per token-expert pair of the rank."""
    _known(measured, "dtype", measured.labels[0], list(PRODUCTS))
    product, c = PRODUCTS[measured.labels[0]], measured.columns
    pairs, touched = expert_load(c, measured.words["distribution"])
    work = ExpertsWork.of(c["d_model"], c["d_ff"] / c["moe_tp"], matrices=c.get("matrices", 3.0), **product.sizes)
    return work_of(
        chip,
        op_class="moe",
        dtype=product.key,
        compute=product.compute,
        flop=work.pair_flop * pairs,
        hbm_bytes=work.expert_bytes * touched + work.pair_bytes * pairs,
        permute_bytes=work.permute_bytes * c["tokens"] * c["top_k"],
        tiles=(touched + pairs / TILE) * work.expert_tiles,
    )


_DRAWS = 48


def power_law_loads(
    num_tokens: int, num_experts: int, experts_per_token: int, exponent: float, rng: np.random.Generator, draws: int
) -> Array:
    """Tokens of each expert in the skewed distribution of the tables.

    Args:
        num_tokens: T, tokens of all ranks [tokens].
        num_experts: E [count].
        experts_per_token: k [count].
        exponent: Z of the density [1].
        rng: source of the draws.
        draws: number of draws [count].

    Returns:
        Tokens of each expert [tokens], shape (draws, E); each row sums to T k.

    Assumes: density ∝ x^-Z between 1 and 0.8 T where T k exceeds E, else between 0.01 and 2.

    Sources: aiconfigurator, collector/helper.py, _generate_power_law_distribution.
    """
    pairs = num_tokens * experts_per_token
    low, high = (1.0, max(0.8 * num_tokens, 1.0 + 1e-9)) if pairs > num_experts else (0.01, 2.0)
    power = 1.0 - exponent
    u = rng.random((draws, num_experts))
    sizes = ((high**power - low**power) * u + low**power) ** (1.0 / power)
    loads = np.minimum(np.rint(sizes / sizes.sum(axis=1, keepdims=True) * pairs), num_tokens)
    for row in loads:
        _settle(row, pairs, num_tokens)
    return loads


def _settle(row: Array, pairs: int, most: int) -> None:
    """Hand out what rounding and the cap left over: to the smallest loads, or from the largest."""
    for _ in range(64):
        left = int(pairs - row.sum())
        if left == 0:
            return
        order = np.argsort(row if left > 0 else -row, kind="stable")
        free = order[(row[order] < most) if left > 0 else (row[order] > 0)]
        row[free[: abs(left)]] += math.copysign(1.0, left) * max(abs(left) // max(len(free), 1), 1)
        np.clip(row, 0, most, out=row)


@lru_cache(maxsize=4096)
def busiest_rank(
    num_tokens: int, num_experts: int, experts_per_token: int, ep: int, exponent: float | None
) -> tuple[float, float]:
    """Pairs and touched experts of the timed rank.

    Args:
        num_tokens: of the whole expert-parallel group [tokens].
        num_experts, experts_per_token, ep: of the model and layout [count].
        exponent: of the skewed distribution; None is balanced.

    Returns:
        Token-expert pairs [count], distinct experts [count].

    >>> busiest_rank(1024, 64, 4, 8, None)
    (512.0, 8.0)
    """
    local = num_experts // ep
    if exponent is None:
        pairs = num_tokens * experts_per_token / ep
        return pairs, min(float(local), max(1.0, pairs))
    rng = np.random.default_rng(20261121)
    loads = power_law_loads(num_tokens, num_experts, experts_per_token, exponent, rng, _DRAWS)
    ranks = loads.reshape(_DRAWS, ep, local)
    timed = ranks[np.arange(_DRAWS), ranks.sum(axis=2).argmax(axis=1)]
    return float(timed.sum(axis=1).mean()), float((timed > 0).sum(axis=1).mean())


def routing_exponent(distribution: str) -> float | None:
    """Exponent of a distribution's name: "balanced" is None, "power_law_1.2" is 1.2.

    Raises:
        InputError: another name.
    """
    if distribution == "balanced":
        return None
    try:
        if distribution.startswith("power_law_"):
            return float(distribution.removeprefix("power_law_"))
    except ValueError:
        pass
    raise InputError(what="distribution", given=distribution, allowed="balanced, power_law_1.2 or another exponent")


def expert_load(columns: dict[str, Array], distributions: tuple[str, ...]) -> tuple[Array, Array]:
    """`busiest_rank` of each row of a MoE table: pairs and touched experts, each of shape (rows,)."""
    found = [
        busiest_rank(int(tokens), int(experts), int(top_k), int(ep), routing_exponent(word))
        for tokens, experts, top_k, ep, word in zip(
            columns["tokens"], columns["num_experts"], columns["top_k"], columns["ep"], distributions, strict=True
        )
    ]
    pairs, touched = np.array(found, dtype=np.float64).T
    return pairs, touched

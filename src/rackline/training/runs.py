"""Runs: how a training step is split over chips and time, for one layout or an array of thousands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rackline.arch import DenseFfn, Model
from rackline.errors import LayoutError, nearest_names
from rackline.hardware import Cluster
from rackline.passes.features import Array, FloatLike

IntArray = NDArray[np.int64]

Recompute = Literal["none", "selective", "modules", "selective-op", "full", "reversible"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "modules", "selective-op", "full", "reversible")
"""Parts of the forward pass that the backward pass recomputes; a run stores the index. "selective" is the core of
attention, "modules" are norms, activation functions and the up-projections of latents, each cheap for the bytes that it
saves (DeepSeek-V3, arXiv:2412.19437, section 3.2.3; Megatron-Core's layernorm, moe_act and mla_up_proj), "selective-op"
is all but attention, exchanges and every second product, whose results are kept (torchtitan's per-op SAC, @b5bcd76,
torchtitan/distributed/activation_checkpoint.py)."""
WHOLE_LAYERS: tuple[Recompute, ...] = ("full", "reversible")
"""Those that repeat all of a layer."""
ScheduleName = Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe"]
SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe")
"""Pipeline schedules; a run stores the index. With virtual_pp above 1, "1f1b" means interleaved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLayout:
    """Layout of a training run: chips = tp · cp · pp · dp.

    Args:
        tp: tensor parallelism, with sequence parallelism between blocks [chips].
        pp, virtual_pp: pipeline stages, and parts of the layer stack that one stage holds [count].
        cp: context parallelism: chips that share each sequence [chips].
        ep, expert_tp: expert and tensor parallelism of the routed experts, inside tp · cp · dp [chips].
        dp: replicas that share a batch [count].
        zero: what dp shards: 0 nothing, 1 optimiser, 2 gradients, 3 weights (FSDP).
        fsdp: replicas over which it shards, while other groups of as many hold copies; 0 for all of dp [count].
        micro_batch: sequences of a micro-batch [sequences].
        recompute: of RECOMPUTE.
        schedule: of SCHEDULES.
    """

    tp: int = 1
    pp: int = 1
    virtual_pp: int = 1
    cp: int = 1
    ep: int = 1
    expert_tp: int = 1
    dp: int = 1
    zero: int = 1
    fsdp: int = 0
    micro_batch: int = 1
    recompute: str = "none"
    schedule: str = "1f1b"

    @property
    def num_chips(self) -> int:
        """All chips [count]."""
        return self.tp * self.pp * self.cp * self.dp

    def label(self) -> str:
        """Short text: parts that are not 1, how states are sharded, what is recomputed."""
        names = ("tp", "pp", "virtual_pp", "cp", "ep", "expert_tp", "dp")
        parts = [f"{name}={getattr(self, name)}" for name in names if getattr(self, name) != 1]
        parts += [f"fsdp={self.fsdp}"] if 0 < self.fsdp < self.dp else []
        parts += [f"micro_batch={self.micro_batch}", f"zero={self.zero}"]
        return ",".join(parts)


_COUNTS = ("tp", "pp", "virtual_pp", "cp", "ep", "expert_tp", "dp", "zero", "fsdp", "micro_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Many layouts as arrays of one length; fields as in `TrainLayout`, recompute and schedule by their index."""

    tp: IntArray
    pp: IntArray
    virtual_pp: IntArray
    cp: IntArray
    ep: IntArray
    expert_tp: IntArray
    dp: IntArray
    zero: IntArray
    fsdp: IntArray
    micro_batch: IntArray
    recompute: IntArray
    schedule: IntArray

    def __len__(self) -> int:
        return len(self.tp)

    @classmethod
    def of(cls, layouts: Sequence[TrainLayout]) -> Runs:
        """Stack layouts."""
        counts = {name: np.array([getattr(one, name) for one in layouts], dtype=np.int64) for name in _COUNTS}
        return cls(
            **counts,
            recompute=np.array([RECOMPUTE.index(one.recompute) for one in layouts], dtype=np.int64),
            schedule=np.array([SCHEDULES.index(one.schedule) for one in layouts], dtype=np.int64),
        )

    def layout(self, index: int) -> TrainLayout:
        """The layout of a single run."""
        return TrainLayout(
            **{name: int(getattr(self, name)[index]) for name in _COUNTS},
            recompute=RECOMPUTE[int(self.recompute[index])],
            schedule=SCHEDULES[int(self.schedule[index])],
        )

    def take(self, rows: Any) -> Runs:
        """Some of them, by index or mask."""
        return Runs(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @property
    def num_chips(self) -> IntArray:
        """Chips of each [count]."""
        return self.tp * self.pp * self.cp * self.dp

    def expert_dp(self) -> IntArray:
        """Copies of each expert's weights that share gradients [count]."""
        return np.maximum(self.tp * self.cp * self.dp // (self.ep * self.expert_tp), 1)

    def copies(self) -> IntArray:
        """Groups of replicas that hold the same shards [count]."""
        return self.dp // np.where(self.fsdp > 0, self.fsdp, self.dp)

    def micro_batches(self, global_batch_sequences: int) -> IntArray:
        """Micro-batches of a step on each replica [count]."""
        return np.maximum(global_batch_sequences // (self.dp * self.micro_batch), 1)


def by_name(index: IntArray, names: Sequence[str], values: Mapping[str, FloatLike]) -> Array:
    """The value of the name that the index of each run stands for."""
    return np.select([index == number for number in range(len(names))], [values[name] for name in names])


def parse_train_layout(text: str) -> dict[str, int]:
    """Parse degrees such as "tp=8,pp=16".

    Raises:
        LayoutError: a degree is unknown, repeated, or not an integer.
    """
    found: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, _, value = part.partition("=")
        key = {"vpp": "virtual_pp", "mbs": "micro_batch", "etp": "expert_tp"}.get(key.strip(), key.strip())
        key = key.replace("-", "_")
        if key not in _COUNTS:
            near = nearest_names(key, _COUNTS, 1)
            raise LayoutError(
                what="layout",
                given=part,
                allowed=", ".join(f"{name}=N" for name in _COUNTS),
                nearest=f"{near[0]}={value or 1}" if near else None,
            )
        least = 0 if key in ("zero", "fsdp") else 1
        if not value.strip().isdigit() or int(value) < least or (key == "zero" and int(value) > 3):
            allowed = "0, 1, 2 or 3" if key == "zero" else "a whole number of at least 1"
            raise LayoutError(what=f"layout {key}", given=value, allowed=allowed, nearest="1")
        if key in found:
            raise LayoutError(what="layout", given=text, allowed=f"{key} once")
        found[key] = int(value)
    return found


def check_layout(
    layout: TrainLayout, model: Model, cluster: Cluster, global_batch_sequences: int, seq_len: int
) -> None:
    """Raise LayoutError if a run is impossible, with the violated constraint and the nearest valid value."""
    found = layout_problem(layout, model, cluster, global_batch_sequences, seq_len)
    if found is not None:
        allowed, nearest = found
        raise LayoutError(what="layout", given=layout.label(), allowed=allowed, nearest=nearest)


def layout_problem(
    layout: TrainLayout, model: Model, cluster: Cluster, global_batch_sequences: int, seq_len: int
) -> tuple[str, str | None] | None:
    """(violated constraint, nearest valid value), or None if the run is possible."""
    chunks, per_step = layout.pp * layout.virtual_pp, layout.dp * layout.micro_batch
    shards, halves = layout.fsdp or layout.dp, layout.cp * (2 if layout.cp > 1 else 1)
    rules = (
        (
            layout.num_chips > cluster.max_chips,
            f"at most {cluster.max_chips} chips: {layout.num_chips} are needed",
            None,
        ),
        (
            chunks > model.num_layers,
            f"pp·virtual_pp = {chunks} exceeds the {model.num_layers} layers",
            f"pp={nearest_divisor(model.num_layers, layout.pp)},virtual_pp=1",
        ),
        (layout.virtual_pp > 1 and layout.pp == 1, "virtual_pp needs pp of at least 2", "virtual_pp=1"),
        (
            layout.dp % shards > 0,
            f"fsdp={shards} does not divide dp={layout.dp}",
            f"fsdp={nearest_divisor(layout.dp, shards)}",
        ),
        (
            global_batch_sequences % per_step > 0,
            f"a global batch of {global_batch_sequences} sequences that dp·micro_batch = {per_step} divides",
            f"a global batch of {nearest_multiple(global_batch_sequences, per_step)}, or micro_batch="
            f"{nearest_divisor(max(global_batch_sequences // layout.dp, 1), layout.micro_batch)}",
        ),
        (
            seq_len % halves > 0,
            f"cp={layout.cp} does not divide a sequence of {seq_len} tokens (in two halves)",
            "cp=1",
        ),
    )
    broken = next(((allowed, nearest) for is_broken, allowed, nearest in rules if is_broken), None)
    return broken or attention_problem(layout, model) or experts_problem(layout, model)


def attention_problem(layout: TrainLayout, model: Model) -> tuple[str, str | None] | None:
    """Why tp cannot cut the heads and dense blocks of a model; None where it can."""
    for attention in model.cores().values():
        heads, kv_heads = attention.num_q_heads, attention.num_kv_heads
        if heads and heads % layout.tp:
            return f"tp={layout.tp} does not divide the {heads} heads", f"tp={nearest_divisor(heads, layout.tp)}"
        if kv_heads and kv_heads % layout.tp and layout.tp % kv_heads:
            allowed = f"tp={layout.tp} neither divides nor is a multiple of the {kv_heads} KV heads"
            return allowed, f"tp={nearest_divisor(kv_heads, layout.tp)}"
    for group in model.layer_groups:
        if isinstance(group.ffn, DenseFfn) and group.ffn.d_ff % layout.tp:
            allowed = f"tp={layout.tp} does not divide d_ff={group.ffn.d_ff}"
            return allowed, f"tp={nearest_divisor(group.ffn.d_ff, layout.tp)}"
    return None


def experts_problem(layout: TrainLayout, model: Model) -> tuple[str, str | None] | None:
    """Why ep and expert_tp cannot cut the experts of a model; None where they can."""
    moe = model.moe()
    if moe is None:
        return None if layout.ep * layout.expert_tp == 1 else ("a dense model has no ep or expert_tp", "ep=1")
    if moe.num_experts % layout.ep:
        allowed = f"ep={layout.ep} does not divide the {moe.num_experts} experts"
        return allowed, f"ep={nearest_divisor(moe.num_experts, layout.ep)}"
    if moe.d_expert % layout.expert_tp:
        return f"expert_tp={layout.expert_tp} does not divide d_expert={moe.d_expert}", "expert_tp=1"
    ranks = layout.tp * layout.cp * layout.dp
    if ranks % (layout.ep * layout.expert_tp):
        return (
            f"ep·expert_tp = {layout.ep * layout.expert_tp} must divide tp·cp·dp = {ranks}",
            f"ep={nearest_divisor(ranks, layout.ep)}",
        )
    return None


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of a number that is nearest to a wanted one; the smaller of two.

    >>> nearest_divisor(96, 7)
    6
    """
    found = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    found += [number // n for n in found]
    return min(found, key=lambda n: (abs(n - wanted), n))


def nearest_multiple(number: int, step: int) -> int:
    """The multiple of a step, at least one, that is nearest to a number.

    >>> nearest_multiple(100, 48)
    96
    """
    return max(step, round(number / step) * step)

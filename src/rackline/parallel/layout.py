"""Layout: how a model is sharded over chips, and which layouts are possible."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rackline.arch import AggregateModel, AnyModel, DenseFfn, Model
from rackline.errors import LayoutError, nearest_names

IntArray = NDArray[np.int64]
IntLike = int | IntArray
LayoutKind = Literal["one", "tp", "attention_dp", "pools"]
KINDS: tuple[LayoutKind, ...] = ("one", "tp", "attention_dp")  # of single engines


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Chips of one replica = tp · attention_dp · pp · cp; all chips = that times dp.

    Args:
        tp: tensor parallelism of attention and dense blocks [chips].
        pp: pipeline stages [count].
        ep, moe_tp: expert and tensor parallelism of the routed experts; ep · moe_tp = tp · attention_dp.
        attention_dp: groups of tp chips inside a replica that hold different sequences [count].
        cp: context parallelism [chips]; tables have 1, see `rackline.serving.disaggregated` for groups that share a
            context.
        dp: replicas [count].
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    moe_tp: int = 1
    attention_dp: int = 1
    cp: int = 1
    dp: int = 1

    @property
    def chips_per_replica(self) -> int:
        """Chips of one replica."""
        return self.tp * self.attention_dp * self.pp * self.cp

    @property
    def kind(self) -> LayoutKind:
        """How the chips of a replica share the attention: one chip alone, tp (or pp, cp) or attention-dp ranks.

        >>> Layout(tp=8).kind, Layout(attention_dp=8, ep=8).kind
        ('tp', 'attention_dp')
        """
        if self.attention_dp > 1:
            return "attention_dp"
        return "tp" if self.chips_per_replica > 1 else "one"

    @property
    def num_chips(self) -> int:
        """All chips."""
        return self.chips_per_replica * self.dp

    def label(self) -> str:
        """Short text: the degrees above 1."""
        parts = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != 1]
        return ",".join(parts) or "tp=1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutGrid:
    """Many layouts as arrays of one length, for vectorised tables; fields as in `Layout`."""

    tp: IntArray
    pp: IntArray
    ep: IntArray
    moe_tp: IntArray
    attention_dp: IntArray

    def __len__(self) -> int:
        return len(self.tp)

    @classmethod
    def of(cls, layouts: list[Layout]) -> LayoutGrid:
        """Stack scalar layouts (dp and cp are left out)."""

        names = [each.name for each in fields(cls)]
        return cls(**{name: np.array([getattr(one, name) for one in layouts], dtype=np.int64) for name in names})

    def take(self, some: slice | IntArray) -> LayoutGrid:
        """Some of the layouts."""
        return LayoutGrid(**{each.name: getattr(self, each.name)[some] for each in fields(self)})

    def layout(self, row: int) -> Layout:
        """A single layout of the grid, with one replica."""
        return Layout(**{each.name: int(getattr(self, each.name)[row]) for each in fields(self)})

    @property
    def kind(self) -> IntArray:
        """Place of each layout's kind among KINDS, shape (layouts,)."""
        return np.where(self.attention_dp > 1, 2, np.where(self.tp * self.pp > 1, 1, 0))

    @property
    def chips_per_replica(self) -> IntArray:
        """Chips of one replica of each layout."""
        return self.tp * self.attention_dp * self.pp


Sharding = Layout | LayoutGrid


def parse_layout(text: str, model: AnyModel | None = None) -> Layout:
    """Parse a layout such as "tp=8,ep=8"; missing degrees follow from the others.

    For a mixture of experts, moe_tp = tp · attention_dp / ep where it is not given.

    Raises:
        LayoutError: a degree is unknown, repeated, or not an integer.
    """
    names = [f.name for f in fields(Layout)]
    given: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, _, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if key not in names:
            near = nearest_names(key, names, 1)
            raise LayoutError(
                what="--layout",
                given=part,
                allowed=", ".join(f"{n}=N" for n in names),
                nearest=f"{near[0]}={value or 1}" if near else None,
            )
        if key in given:
            raise LayoutError(what="--layout", given=text, allowed=f"{key} once")
        if not value.strip().isdigit() or int(value) < 1:
            raise LayoutError(what=f"--layout {key}", given=value, allowed="a whole number of at least 1", nearest="1")
        given[key] = int(value)
    layout = Layout(**given)
    if isinstance(model, Model) and model.is_moe and "moe_tp" not in given:
        group = layout.tp * layout.attention_dp
        if group % layout.ep == 0:
            layout = replace(layout, moe_tp=group // layout.ep)
    return layout


def problem(layout: Layout, model: AnyModel, num_chips: int | None = None) -> str | None:
    """Why a layout is impossible for this model, in one line; None if it is possible."""
    if layout.cp != 1:
        return f"cp={layout.cp}: context parallelism is not modelled, only cp=1"
    if num_chips is not None and layout.num_chips > num_chips:
        return f"{layout.label()} needs {layout.num_chips} chips, the cluster has {num_chips}"
    if isinstance(model, AggregateModel):
        sharded = layout.pp * layout.ep * layout.moe_tp * layout.attention_dp != 1
        return "an aggregate model has no layers or experts to shard: only tp and dp" if sharded else None
    if layout.pp > model.num_layers:
        return f"pp={layout.pp} exceeds the {model.num_layers} layers"
    return _attention_problem(layout, model) or _ffn_problem(layout, model)


def _attention_problem(layout: Layout, model: Model) -> str | None:
    for attention in model.attention_kinds().values():
        heads, kv_heads = attention.num_q_heads, attention.num_kv_heads
        if heads % layout.tp:
            return f"tp={layout.tp} does not divide the {heads} query heads"
        if kv_heads % layout.tp and layout.tp % kv_heads:
            return f"tp={layout.tp} neither divides nor is a multiple of the {kv_heads} KV heads"
    return None


def _ffn_problem(layout: Layout, model: Model) -> str | None:
    for group in model.layer_groups:
        if isinstance(group.ffn, DenseFfn) and group.ffn.d_ff % layout.tp:
            return f"tp={layout.tp} does not divide d_ff={group.ffn.d_ff}"
    moe = model.moe()
    if moe is None:
        sharded = layout.ep * layout.moe_tp * layout.attention_dp != 1
        return "a dense model has no ep, moe_tp or attention_dp; use tp and dp" if sharded else None
    if layout.ep * layout.moe_tp != layout.tp * layout.attention_dp:
        return f"ep·moe_tp = {layout.ep * layout.moe_tp} must equal tp·attention_dp = {layout.tp * layout.attention_dp}"
    if layout.ep > moe.num_experts:
        return f"ep={layout.ep} exceeds the {moe.num_experts} experts"
    if moe.d_expert % layout.moe_tp:
        return f"moe_tp={layout.moe_tp} does not divide d_expert={moe.d_expert}"
    return None


def check(layout: Layout, model: AnyModel, num_chips: int | None = None) -> None:
    """Raise LayoutError if a layout is impossible, with the nearest possible one."""
    reason = problem(layout, model, num_chips)
    if reason is None:
        return
    chips = num_chips or max(layout.num_chips, 1)
    nearest = min(
        (option for option in enumerate_layouts(model, chips) if problem(option, model, num_chips) is None),
        key=lambda one: sum(abs(np.log2(getattr(one, f.name) / getattr(layout, f.name))) for f in fields(Layout)),
        default=None,
    )
    raise LayoutError(
        what="--layout",
        given=layout.label(),
        allowed=reason,
        nearest=nearest.label() if nearest else None,
    )


def is_usual(chips: int) -> bool:
    """Whether a group size is of the form 2^a 3^b, as racks and nodes are."""
    return (6**64) % chips == 0


def enumerate_layouts(model: AnyModel, num_chips: int, max_pp: int = 8) -> list[Layout]:
    """All possible layouts of one replica on at most `num_chips` chips (dp = 1).

    tp runs over the divisors of the query heads, pp over 1, 2, 3, 4, 6, 8, attention_dp over all counts that
    fit, ep over the divisors of the group; the caller adds replicas.
    """
    if isinstance(model, AggregateModel):
        return [Layout(tp=chips) for chips in range(1, num_chips + 1)]
    found: list[Layout] = []
    heads = model.num_q_heads
    pps = [pp for pp in (1, 2, 3, 4, 6, 8, 12, 16) if pp <= min(max_pp, model.num_layers)]
    for tp in (n for n in range(1, min(heads, num_chips) + 1) if heads % n == 0):
        for pp in pps:
            if tp * pp > num_chips:
                break
            if not model.is_moe:
                found.append(Layout(tp=tp, pp=pp))
                continue
            for attention_dp in range(1, num_chips // (tp * pp) + 1):
                group = tp * attention_dp
                if not is_usual(group) and group * pp != num_chips:
                    continue
                found.extend(
                    Layout(tp=tp, pp=pp, ep=ep, moe_tp=group // ep, attention_dp=attention_dp)
                    for ep in range(1, group + 1)
                    if group % ep == 0
                )
    return [layout for layout in found if problem(layout, model) is None]


def matching_layouts(text: str | None, model: AnyModel, num_chips: int) -> list[Layout] | None:
    """Layouts that have the given degrees ("tp=8" leaves the others free); None for all.

    Raises:
        LayoutError: there is none, with the nearest one that is possible.
    """
    if text is None:
        return None
    wanted = parse_layout(text, model)
    named = [part.partition("=")[0].strip().replace("-", "_") for part in text.split(",") if part.strip()]
    if not named:
        raise LayoutError(what="layout", given=text, allowed="parts such as tp=8,ep=8", nearest="tp=1")
    if "dp" in named:
        raise LayoutError(
            what="layout",
            given=text,
            allowed="the degrees of one replica; replicas fill all chips, see `chips`",
            nearest=",".join(part for part in text.split(",") if part.partition("=")[0].strip() != "dp") or "tp=1",
        )
    options = enumerate_layouts(model, num_chips)
    matching = [o for o in options if all(getattr(o, name) == getattr(wanted, name) for name in named)]
    if not matching:
        check(wanted, model, num_chips)
        matching = [wanted]
    return matching

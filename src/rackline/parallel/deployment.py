"""A deployment: a model on a cluster under a layout, a precision and a calibration; its pass tables; drafts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from rackline.arch import AggregateModel, AnyModel, Dim, Model, Projection, media_of, with_media
from rackline.errors import InputError, LayoutError, nearest_name, require
from rackline.hardware import Cluster
from rackline.parallel.blocks import attention_rows, ends_rows, ffn_rows
from rackline.parallel.exchange import exchange_rows
from rackline.parallel.layout import Layout, LayoutGrid, Sharding, check
from rackline.parallel.memory import SERVER, MemoryUse, ServerMemory, max_sequences, memory_use
from rackline.parallel.precision import Precision, compute_dtype, precision as find_precision, storage_bytes
from rackline.parallel.work import Weights, adapter_rows, gemm_row, tower_layout, tower_rows
from rackline.passes import Calibration, ExpertLoad, PassTable, RoutingLaw, Row, features as f
from rackline.passes.features import Array, ExpertLaw, FloatLike, as_array
from rackline.passes.routing import POPULAR, ROUTING_LAWS, expert_spread
from rackline.units import parse_count

_MOST_COPIES = 4096
_SKEWS: Mapping[RoutingLaw, tuple[str, float | None]] = {"power_law": ("exponent", 0.5), "log_normal": ("spread", None)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Routing of tokens to experts.

    Args:
        law: balanced, uniform, log_normal or power_law.
        exponent: exponent of the power law.
        spread: standard deviation of the logarithm of the log-normal law; None for the measured one by number of
            experts.
        rearranged_from_ep: smallest ep from which popular experts are rearranged over the ranks; None for never
            [count].
        redundant_experts: additional copies of popular experts when they are rearranged [count].
    """

    law: RoutingLaw = "uniform"
    exponent: float = 0.0
    spread: float | None = None
    rearranged_from_ep: int | None = None
    redundant_experts: int = 0

    def label(self) -> str:
        """The law as the command line reads it: "power-law=0.85", "log-normal=0.7+32" with 32 redundant experts."""
        if self.law in ("balanced", "uniform"):
            return self.law
        skew = self.exponent if self.law == "power_law" else self.spread
        text = self.law.replace("_", "-") + ("" if skew is None else f"={skew:g}")
        if self.rearranged_from_ep is None:
            return text
        return f"{text}+{self.redundant_experts}" + (
            f" from ep={self.rearranged_from_ep}" if self.rearranged_from_ep > 1 else ""
        )

    def skew(self, num_experts: int) -> float:
        """Exponent or spread of the law, for a router with this number of experts."""
        skew = {"power_law": self.exponent, "log_normal": self.spread}.get(self.law, 0.0)
        return expert_spread(num_experts) if skew is None else skew

    def copies(self, ep: int) -> int | None:
        """Redundant experts with this number of ranks; None if experts are placed in the order of their numbers."""
        rearranges = self.rearranged_from_ep is not None and ep >= self.rearranged_from_ep
        return self.redundant_experts if rearranges else None


def parse_routing(text: str) -> Routing:
    """Parse a routing law.

    "uniform", "balanced", "power-law=EXPONENT" or "log-normal=SPREAD" (by default the measured spread for the number of
    experts); the last two with "+COPIES" if experts are rearranged with this number of redundant ones.

    Raises:
        InputError: the text is not a routing law.
    """
    known: dict[str, RoutingLaw] = {name.replace("_", "-"): name for name in ROUTING_LAWS}
    words, plus, copies = text.partition("+")
    name, equals, skew = words.strip().partition("=")
    law = known.get(name.strip().replace("_", "-"))
    if law is None or ((equals or plus) and law not in POPULAR):
        raise InputError(
            what="routing",
            given=text,
            allowed="balanced, uniform, log-normal[=SPREAD][+COPIES] or power-law=EXPONENT[+COPIES]",
            nearest=nearest_name(name.strip(), known),
        )
    require(
        not plus or (copies.strip().isdecimal() and int(copies) <= _MOST_COPIES),
        what="routing",
        given=text,
        allowed=f"0 to {_MOST_COPIES} redundant experts after +",
    )
    field_name, usual = _SKEWS.get(law, ("", None))
    given = parse_count(skew, name=f"routing {field_name}", maximum=10.0) if equals else usual
    routing = Routing(law=law, rearranged_from_ep=1 if plus else None, redundant_experts=int(copies) if plus else 0)
    return replace(routing, **{field_name: given}) if field_name else routing


@dataclass(frozen=True, slots=True)
class ExpertLoads:
    """Expert loads of many layouts: one tabulated law per distinct ep."""

    ep: Array
    loads: dict[int, ExpertLoad]

    def expert_tokens(self, group_tokens: FloatLike) -> FloatLike:
        """(layouts, points) token-expert pairs on the busiest rank."""
        return self._spread(group_tokens, "expert_tokens")

    def experts_touched(self, group_tokens: FloatLike) -> FloatLike:
        """(layouts, points) distinct experts on the busiest rank."""
        return self._spread(group_tokens, "experts_touched")

    def take(self, some: slice | Array) -> ExpertLoads:
        """The laws of some of the layouts."""
        kept = self.ep[some]
        return ExpertLoads(kept, {int(ep): self.loads[int(ep)] for ep in np.unique(kept)})

    def layout(self, index: int) -> ExpertLoad:
        """The law of one layout."""
        return self.loads[int(self.ep[index])]

    def _spread(self, group_tokens: FloatLike, what: str) -> Array:
        tokens = as_array(group_tokens)
        tokens = tokens.reshape((1,) * max(0, 2 - tokens.ndim) + tokens.shape)
        require(
            tokens.shape[0] in (1, len(self.ep)),
            what="batch shape",
            given=tokens.shape,
            allowed=f"(), (points,) or ({len(self.ep)} layouts, points...)",
        )
        out = np.empty((len(self.ep), *tokens.shape[1:]))
        for ep, load in self.loads.items():
            mine = self.ep == ep
            picked = tokens if tokens.shape[0] == 1 else tokens[mine]
            out[mine] = getattr(load, what)(picked)
        return out


def build_table(
    model: AnyModel,
    cluster: Cluster,
    layout: Sharding,
    precision: Precision,
    calibration: Calibration,
    routing: Routing | None = None,
    experts: ExpertLaw | None = None,
    sample_bytes_per_logit: float = 0.0,
) -> PassTable:
    """Pass table of a layout, or of all layouts of a grid at once.

    Args:
        layout: one `Layout`, or a `LayoutGrid` for coefficients of shape (layouts,).
        experts: law of the busiest rank if it is tabulated already (see `expert_law`).
        sample_bytes_per_logit: memory traffic of a logit while a token is drawn; 0 for greedy decoding [bytes].

    Assumes: tp is innermost, then attention_dp, then pp; all attention-dp ranks carry the same load.
    """
    routing = routing or Routing()
    num = len(layout) if isinstance(layout, LayoutGrid) else None
    if isinstance(model, AggregateModel):
        return PassTable(
            rows=_aggregate_rows(model, layout, precision, cluster),
            chip=cluster.chip,
            cluster=cluster,
            calibration=calibration,
            kinds={},
            num_layouts=num,
            assumptions=("weights and KV cut evenly over the chips, no communication",),
        )
    rows = _rows(model, layout, precision, cluster, calibration.padded_experts, sample_bytes_per_logit)
    media = media_of(model)
    if media is not None and media.prompt_len is not None:
        for part in media.parts:
            inner = part.tower.model
            types = find_precision("bf16", inner, cluster.chip)
            encoder = _rows(inner, tower_layout(inner, layout), types, cluster, calibration.padded_experts)
            rows += tower_rows(part, encoder, media.prompt_len)
    return PassTable(
        rows=tuple(rows),
        chip=cluster.chip,
        cluster=cluster,
        calibration=calibration,
        kinds=model.cores(),
        experts=experts or expert_law(model, layout, routing),
        adapters=model.adapter if model.adapter is not None and model.adapter.number > 1 else None,
        num_layouts=num,
        assumptions=(
            f"routing {routing.label()}" if model.is_moe else "dense model",
            "each weight is read once per pass; activations between operations pass memory",
        ),
    )


def _rows(
    model: Model,
    layout: Sharding,
    precision: Precision,
    cluster: Cluster,
    padded_experts: Mapping[str, float],
    sample_bytes_per_logit: float = 0.0,
) -> list[Row]:
    """All rows of a layer stack with its ends and its collectives."""
    return [
        *attention_rows(model, layout, precision, cluster.chip),
        *ffn_rows(model, layout, precision, cluster.chip, padded_experts),
        *ends_rows(model, layout, precision, cluster.chip, sample_bytes_per_logit),
        *exchange_rows(model, layout, precision, cluster),
        *adapter_rows(model, layout, cluster.chip),
    ]


def expert_law(model: AnyModel, layout: Sharding, routing: Routing) -> ExpertLoad | ExpertLoads | None:
    """Tabulate the load of the busiest expert-parallel rank; None for dense and aggregate models."""
    moe = model.moe() if isinstance(model, Model) else None
    if moe is None:
        return None

    def tabulate(ep: int) -> ExpertLoad:
        return ExpertLoad.tabulate(
            num_experts=moe.num_experts,
            experts_per_token=moe.experts_per_token,
            ep=ep,
            law=routing.law,
            skew=routing.skew(moe.num_experts),
            redundant_experts=routing.copies(ep),
        )

    if isinstance(layout, Layout):
        return tabulate(layout.ep)
    return ExpertLoads(as_array(layout.ep), {int(ep): tabulate(int(ep)) for ep in np.unique(layout.ep)})


def _aggregate_rows(model: AggregateModel, layout: Sharding, precision: Precision, cluster: Cluster) -> tuple[Row, ...]:
    tp = as_array(layout.tp)
    dtype = compute_dtype(precision.activations, cluster.chip)
    stored = storage_bytes(precision.linear_weights)
    return (
        Row(
            name="weights",
            group="weights",
            op_class="gemm",
            dtype=dtype,
            compute={f.TOKENS: 2.0 * model.active_params / tp},
            hbm={f.ONE: model.total_params * stored / tp},
            launches={f.ONE: 1.0},
            formula="2·N_active FLOP per token, N_total weights once",
        ),
        Row(
            name="kv_cache",
            group="attention",
            op_class="attention_decode",
            dtype=precision.kv_cache,
            hbm={f.kv_tokens("all"): model.stated_kv_bytes_per_token / tp},
            launches={f.HAS_DECODE: 1.0},
            formula="KV bytes per token × tokens of context",
        ),
        Row(
            name="kv_write",
            group="attention",
            op_class="elementwise",
            dtype="bf16",
            hbm={f.TOKENS: model.stated_kv_bytes_per_token / tp},
            launches={f.ONE: 1.0},
            formula="KV bytes of each new token",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # compared and hashed as itself: it holds tables of numbers
class Deployment:
    """Model × cluster × layout × precision × calibration.

    Args:
        sample_bytes_per_logit: memory traffic of a logit while a token is drawn; 0 for greedy decoding [bytes].

    Raises:
        LayoutError: the layout is impossible for the model or the cluster.
    """

    json_keys: ClassVar = (
        "model=model.name",
        "cluster=cluster.name",
        "chip=cluster.chip.name",
        "layout",
        "precision",
        "calibration=calibration.label",
        "routing=routing.label()",
    )

    model: AnyModel
    cluster: Cluster
    layout: Layout
    precision: Precision
    calibration: Calibration
    routing: Routing = field(default_factory=Routing)
    sample_bytes_per_logit: float = 0.0

    def __post_init__(self) -> None:
        check(self.layout, self.model, self.cluster.num_chips)

    def table(self) -> PassTable:
        """The pass table of one replica's chips."""
        return build_table(
            self.model,
            self.cluster,
            self.layout,
            self.precision,
            self.calibration,
            self.routing,
            sample_bytes_per_logit=self.sample_bytes_per_logit,
        )

    @property
    def stage_imbalance(self) -> float:
        """Slowest stage over the mean stage: ceil(layers / pp) · pp / layers, at least 1."""
        return stage_imbalance(self.model, self.layout.pp)

    def memory(self, *, sequences: FloatLike, context_len: float, server: ServerMemory = SERVER) -> MemoryUse:
        """Memory of the fullest chip with `sequences` sequences on one replica; see `memory_use`."""
        slots = self.layout.attention_dp * self.layout.pp
        return memory_use(
            self.model,
            self.layout,
            self.precision,
            self.cluster.chip,
            server,
            sequences_per_rank=np.ceil(as_array(sequences) / slots) * self.layout.pp,
            context_len=context_len,
        )

    def max_sequences(self, *, context_len: float, server: ServerMemory = SERVER) -> int:
        """Sequences of this context that fit on one replica; see `rackline.parallel.max_sequences`."""
        return max_sequences(
            self.model, self.layout, self.precision, self.cluster.chip, server, context_len=context_len
        )

    def with_calibration(self, calibration: Calibration) -> Deployment:
        """The same deployment under another calibration."""
        return replace(self, calibration=calibration)


def stage_imbalance(model: AnyModel, pp: int | Array) -> Any:
    """Slowest stage over the mean stage; 1 for aggregate models."""
    if isinstance(model, AggregateModel):
        return 1.0
    stages = as_array(pp)
    stretch = np.ceil(model.num_layers / stages) * stages / model.num_layers
    return float(stretch) if stretch.ndim == 0 else stretch


_EAGLE_3_STATES = 3  # hidden states of low, middle and high layers, as wide as the model


def draft_table(deployment: Deployment) -> PassTable:
    """Pass table of one draft: a projection of the two inputs, one layer like the model's last, and the output head.

    Raises:
        InputError: the model is an aggregate, whose layers are not known.

    A draft model that is named (`Model.draft`) takes the place of the layer: all of its layers and its head; a head of
    one layer as wide as the model keeps the projection of its inputs (EAGLE-3 joins three, arXiv:2503.01840).

    Assumes: the draft layer is sharded over the same chips as a layer of the model (the last stage of a pipeline); its
        weights and the KV cache of its one layer do not count as memory, those of a named draft model do; prompts take
        no time of a draft model.
    Sources: DeepSeek-V3 technical report (arXiv:2412.19437), section 2.2: MTP module.
    """
    model = deployment.model
    if not isinstance(model, Model):
        raise InputError(what="speculation", given=model.name, allowed="a model with layers")
    if model.draft is not None:
        return _named_draft_table(deployment, model, model.draft)
    last = replace(model.layer_groups[-1], count=1)
    layout = replace(deployment.layout, pp=1)
    chips = max(deployment.cluster.num_chips // deployment.layout.pp, 1)
    try:
        draft = replace(
            deployment,
            model=with_media(replace(model, layer_groups=(last,), adapter=None, draft=None), None),
            layout=layout,
            cluster=deployment.cluster.with_num_chips(chips),
        )
    except LayoutError as error:
        raise InputError(
            what="speculation", given=deployment.layout.label(), allowed="a layout that shards one layer"
        ) from error
    return _with_inputs(draft, model.d_model, joined=2)


def _with_inputs(draft: Deployment, d_model: int, *, joined: int) -> PassTable:
    """The table of a draft layer with the projection of its inputs: hidden states of the model and the last token."""
    table = draft.table()
    width = Dim(size=d_model)
    weights = Weights(stored=draft.precision.linear_weights, activations=draft.precision.activations)
    inputs = gemm_row(
        Projection(name="draft_in", d_in=(width,) * joined, d_out=(width,)),
        count=1,
        tp=draft.layout.tp,
        weights=weights,
        chip=draft.cluster.chip,
        group="ends",
    )
    return replace(table, rows=(*table.rows, inputs))


def _named_draft_table(deployment: Deployment, model: Model, draft: Model) -> PassTable:
    """Pass of a named draft model on the tensor-parallel group of the model, or whole on each chip."""
    chip = deployment.cluster.chip
    layout = tower_layout(draft, deployment.layout)
    own = replace(
        deployment,
        model=draft,
        layout=layout if isinstance(layout, Layout) else Layout(),
        precision=find_precision("native", draft, chip),
    )
    if draft.num_layers == 1 and draft.d_model == model.d_model:
        return _with_inputs(own, draft.d_model, joined=_EAGLE_3_STATES)
    return own.table()

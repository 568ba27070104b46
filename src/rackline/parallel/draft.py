"""The rows of one draft of speculative decoding: a layer of the model itself, or a draft model that is named."""

from __future__ import annotations

from dataclasses import replace

from rackline.arch import Dim, Model, Projection, with_media
from rackline.errors import InputError, LayoutError
from rackline.parallel.blocks import Weights, gemm_row
from rackline.parallel.deployment import Deployment
from rackline.parallel.layout import Layout
from rackline.parallel.precision import precision as find_precision
from rackline.parallel.towers import tower_layout
from rackline.passes import PassTable

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

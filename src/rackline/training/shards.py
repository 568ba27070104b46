"""Parameters on each chip: the layers of its stage, its experts, embedding and head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rackline.arch import DenseFfn, Model
from rackline.passes.features import Array, as_array
from rackline.training.adapters import LoraTargets, is_adapted
from rackline.training.runs import Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """Parameters of one chip [elements], run by run.

    Args:
        dense: layers of the mean stage, without routed experts.
        experts: routed experts of the mean stage.
        ends: embedding or head on the fullest stage.
        largest, last: layers of the fullest and of the last stage over the mean; the last has the remainder.
        layer: of the largest layer, which is gathered whole under ZeRO 3.
        adapters: low-rank adapters of the mean stage.
    """

    dense: Array
    experts: Array
    ends: Array
    largest: Array
    last: Array
    layer: Array
    adapters: Array


def shards(
    model: Model, runs: Runs, mtp_layers: int = 0, lora_rank: int = 0, lora_targets: LoraTargets = "all"
) -> Shards:
    """Shard the parameters of a model.

    Args:
        mtp_layers: multi-token-prediction layers [count].
        lora_rank: rank of adapters; 0 for none [count].
        lora_targets: products of attention and dense blocks that have one.
    """
    tp, pp = as_array(runs.tp), as_array(runs.pp)
    d = model.d_model
    dense, experts = np.zeros(len(runs)), np.zeros(len(runs))
    biggest = np.zeros(len(runs))
    adapters = np.zeros(len(runs))
    last = len(model.layer_groups) - 1
    for index, group in enumerate(model.layer_groups):
        count = group.count + (mtp_layers if index == last else 0)
        expansion = group.attention.expansion()
        one = sum((as_array(p.shard_weights(tp)) for p in group.attention.projections(d)), np.zeros(len(runs)))
        if expansion is not None:
            one = one + expansion.shard_weights(tp)
        one = one + group.attention.extra_params() + model.norms_per_layer * model.norm_params_per_norm
        routed = np.zeros(len(runs))
        ffn = group.ffn
        if isinstance(ffn, DenseFfn):
            one = one + sum((as_array(p.shard_weights(tp)) for p in ffn.projections(d)), np.zeros(len(runs)))
        else:
            latent = ffn.latent_params(d)
            one = one + ffn.router_params(d) + ffn.shared_params(d) / tp + latent
            routed = np.ceil(ffn.num_experts / as_array(runs.ep)) * ffn.expert_params(d) / as_array(runs.expert_tp)
        dense, experts = dense + count * one, experts + count * routed
        blocks = ffn.projections(d) if isinstance(ffn, DenseFfn) else ()
        for projection in (*group.attention.projections(d), *([expansion] if expansion else []), *blocks):
            if not is_adapted(projection.name, lora_targets):
                continue
            sides = as_array(projection.shard_in(tp)) + projection.shard_out(tp)
            adapters = adapters + count * lora_rank * sides
        biggest = np.maximum(biggest, one + routed)
    table = model.vocab_size * d / tp
    both = 1.0 if model.tied_embeddings else 2.0
    # with pp > 1 the first stage holds the embedding and the last the head
    ends = np.where(pp > 1, table, both * table) + model.learned_positions * d
    layers = model.num_layers + mtp_layers
    fullest = np.ceil(layers / pp)
    return Shards(
        dense=dense / pp,
        experts=experts / pp,
        ends=ends,
        largest=fullest * pp / layers,
        last=np.maximum(layers - (pp - 1.0) * fullest, 0.0) * pp / layers,
        layer=biggest,
        adapters=adapters / pp,
    )

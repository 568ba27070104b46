"""Memory of a training step on the fullest chip: parameters, states, activations, logits, buffers, margin."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from rackline.arch import DenseFfn, MoeFfn
from rackline.passes.features import Array, FloatLike, as_array
from rackline.training.contexts import context_method
from rackline.training.kernels import from_latent, kept_products
from rackline.training.runs import RECOMPUTE, SCHEDULES, WHOLE_LAYERS, Recompute, Runs, by_name
from rackline.training.system import MicroBatch, TrainingSystem, attention_products

RUNTIME_BYTES = 2.5e9
"""Driver, kernels, and buffers of collectives, NCCL channels of every group (assumed)."""
MARGIN = 0.04
"""Share of what is used that the allocator cannot use for its fragments (assumed; expandable segments)."""


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


def shards(system: TrainingSystem, runs: Runs) -> Shards:
    """Shard the parameters of a model."""
    tp, pp = as_array(runs.tp), as_array(runs.pp)
    model = system.model
    d = model.d_model
    dense, experts, biggest, adapters = (np.zeros(len(runs)) for _ in range(4))
    for group in system.layer_groups:
        ffn, products = group.ffn, attention_products(group.attention, d)
        one = sum((as_array(p.shard_weights(tp)) for p in products), np.zeros(len(runs)))
        one = one + group.attention.extra_params() + model.norms_per_layer * model.norm_params_per_norm
        routed = np.zeros(len(runs))
        if isinstance(ffn, DenseFfn):
            one = one + sum((as_array(p.shard_weights(tp)) for p in ffn.projections(d)), np.zeros(len(runs)))
            products += ffn.projections(d)
        else:
            one = one + ffn.router_params(d) + ffn.shared_params(d) / tp + ffn.latent_params(d)
            routed = np.ceil(ffn.num_experts / as_array(runs.ep)) * ffn.expert_params(d) / as_array(runs.expert_tp)
        dense, experts = dense + group.count * one, experts + group.count * routed
        sides = (as_array(p.shard_in(tp)) + p.shard_out(tp) for p in products if system.adapts(p.name))
        adapters = adapters + group.count * system.lora_rank * sum(sides, np.zeros(len(runs)))
        biggest = np.maximum(biggest, one + routed)
    table = model.vocab_size * d / tp
    both = 1.0 if model.tied_embeddings else 2.0
    # with pp > 1 the first stage holds the embedding and the last the head
    ends = np.where(pp > 1, table, both * table) + model.learned_positions * d
    fullest = np.ceil(system.num_layers / pp)
    return Shards(
        dense=dense / pp,
        experts=experts / pp,
        ends=ends,
        largest=fullest * pp / system.num_layers,
        last=np.maximum(system.num_layers - (pp - 1.0) * fullest, 0.0) * pp / system.num_layers,
        layer=biggest,
        adapters=adapters / pp,
    )


def korthikanti_layer_bytes(
    *,
    seq_len: FloatLike,
    micro_batch: FloatLike,
    d_model: FloatLike,
    num_heads: FloatLike,
    tp: FloatLike = 1.0,
    sequence_parallel: bool = False,
    recompute: Literal["none", "selective", "full"] = "none",
) -> FloatLike:
    """Activations of one GPT layer with dropout, before fused attention.

    none: s b h (10 + 24/t + 5 a s / (h t)); with sequence parallelism s b h / t (34 + 5 a s / h);
    selective: the same without 5 a s / h; full: 2 s b h.

    Args:
        seq_len: s [tokens], any shape.
        micro_batch: b [sequences], same shape.
        d_model: h [elements].
        num_heads: a [count].
        tp: t [chips].
        sequence_parallel: whether norms, residuals and dropout are sharded over tp.
        recompute: "none", "selective" or "full".

    Returns:
        Bytes per layer and chip [bytes], broadcast shape.

    Assumes: 2 bytes per element, 1 per element of a dropout mask, d_ff = 4 h, GELU.

    Sources: Korthikanti et al. 2022 (arXiv:2205.05198), equations 1 to 6 and table 2.

    >>> whole = korthikanti_layer_bytes(seq_len=2048, micro_batch=1, d_model=12288, num_heads=96)
    >>> less = korthikanti_layer_bytes(seq_len=2048, micro_batch=1, d_model=12288, num_heads=96, recompute="selective")
    >>> round(float(1 - less / whole), 2)
    0.7
    """
    tokens = as_array(seq_len) * micro_batch * d_model
    if recompute == "full":
        return 2.0 * tokens
    scores = as_array({"none": 5.0, "selective": 0.0}[recompute]) * num_heads * seq_len / d_model
    if sequence_parallel:
        return tokens / tp * (34.0 + scores)
    return tokens * (10.0 + 24.0 / as_array(tp) + scores / tp)


def stack_bytes(batch: MicroBatch, recompute: Recompute, *, dropout: bool = False) -> Array:
    """Activations that one micro-batch stores in all layers of a chip for the backward pass [bytes].

    Inputs of products are kept as they are multiplied; queries, keys and values for attention; gate and up for the
    activation function; inputs of norms. Outputs of experts are not stored: the weight of an expert is applied to the
    output of its activation function. Recompute keeps only what it starts from: inputs of norms, of activation
    functions and of up-projections of latents (modules), results of operators (selective-op), the input of each layer
    (full), or nothing (reversible: two streams of the last layer).
    """
    residual = 2.0 * batch.system.model.d_model / batch.spread
    whole = {"full": residual * batch.system.num_layers, "reversible": 2.0 * residual * as_array(batch.runs.pp)}
    if recompute in whole:
        return batch.tokens * whole[recompute]
    groups = enumerate(batch.system.layer_groups)
    each = (layer_bytes(batch, index, recompute, dropout=dropout) * group.count for index, group in groups)
    return sum(each, np.zeros(len(batch.runs)))


def layer_bytes(batch: MicroBatch, index: int, recompute: Recompute = "none", *, dropout: bool = False) -> Array:
    """Activations that one micro-batch stores in one layer of a group [bytes]."""
    group = batch.system.model.layer_groups[index]
    if recompute == "selective-op":
        return _results(batch, index)
    kept = _attention(batch, index, recompute, dropout) if group.attention.cores() else np.zeros(len(batch.runs))
    if isinstance(group.ffn, MoeFfn):
        return kept + _mixture(batch, group.ffn, recompute)
    return kept + (_dense(batch, group.ffn, recompute, dropout) if group.ffn.d_ff else 0.0)


def _run_again(recompute: Recompute) -> tuple[bool, bool]:
    """Whether (the core of attention, the cheap modules of a layer) are recomputed, so that nothing of them is
    stored."""
    return recompute != "none", recompute not in ("none", "selective")


def _results(batch: MicroBatch, index: int) -> Array:
    """The input of a layer and the results of operators that are kept: of products in bf16, of fused attention, of
    scatters, of the exchange of tokens."""
    system, tp = batch.system, as_array(batch.runs.tp)
    group, d = system.model.layer_groups[index], system.model.d_model
    scatters = 2.0 * (batch.spread > 1)  # behind attention and behind the feed-forward block
    per_token = 2.0 * d / batch.spread * (1.0 + scatters)
    for one, share in kept_products(group, d).items():
        per_token = per_token + 2.0 * share * one.shard_out(tp)
        if one.name == "attention_out":
            per_token = per_token + 2.0 * one.shard_in(tp)
    heads = sum(core.num_q_heads for core in group.attention.cores() if core.prefill_flop_per_pair)
    kept = batch.tokens * (per_token + 4.0 * np.ceil(heads / tp))  # log-sum-exp of each row
    if isinstance(group.ffn, MoeFfn):
        kept = kept + 4.0 * batch.expert_tokens() * group.ffn.expert_d_in(d) * (batch.runs.ep > 1)
    return kept


def _attention(batch: MicroBatch, index: int, recompute: Recompute, dropout: bool) -> Array:
    system, tp = batch.system, as_array(batch.runs.tp)
    attention, precision, d = system.model.layer_groups[index].attention, system.precision, system.model.d_model
    core_again, again = _run_again(recompute)
    narrow = 0.0 if again else precision.gemm_bytes  # outputs of norms
    per_token = (2.0 + narrow + _kept_by_norms(batch, again)) * d / batch.spread  # input of norm and of first product
    per_token = per_token + _kept_by_norms(batch, again) * attention.normed_elements / tp
    for projection in attention_products(attention, d):
        latent = from_latent(projection, d)
        if latent or projection.d_in[0].units > 1:
            # attention needs its output as well
            out, other = precision.attention_output_bytes, narrow if latent else precision.gemm_bytes
            per_token = per_token + (out if projection.name.endswith("out") else other) * projection.shard_in(tp)
        if (projection.d_out[0].size != d or projection.d_out[0].units > 1) and not (latent and again):
            per_token = per_token + 2.0 * projection.shard_out(tp)
    if dropout:
        per_token = per_token + d / batch.spread
    scores = np.zeros(len(batch.runs))
    for core in attention.cores():
        heads = np.ceil(core.num_q_heads / tp)
        per_token = per_token + 4.0 * heads  # log-sum-exp of each row
        if not system.stack.kernels.flash_attention and not core_again:
            scores = scores + (5.0 if dropout else 2.0) * heads * system.seq_len
        if core.chunk_flop_per_token:
            per_token = per_token + 2.0 * heads * core.decode_io_elements
    return batch.tokens * (per_token + scores)


def _dense(batch: MicroBatch, ffn: DenseFfn, recompute: Recompute, dropout: bool, *, norm: bool = True) -> Array:
    tp, precision, d = as_array(batch.runs.tp), batch.system.precision, batch.system.model.d_model
    again = _run_again(recompute)[1]
    narrow = 0.0 if again else precision.gemm_bytes
    up = ffn.projections(d)[0].shard_out(tp)
    normed = norm * (2.0 + _kept_by_norms(batch, again))
    per_token = (normed + narrow + dropout) * d / batch.spread + precision.activation_input_bytes * up
    # without fusion the output of the activation function is kept beside its product with the gate
    unfused = 2.0 * (batch.system.stack.kernels.eager and not again)
    return batch.tokens * (per_token + (narrow + unfused) * ffn.d_ff / tp)


def _kept_by_norms(batch: MicroBatch, again: bool) -> float:
    """Bytes of an element that an RMS norm without fusion keeps beside its input and output: the element in fp32, and
    normalised in bf16 where the weight of the norm is trained (transformers, LlamaRMSNorm)."""
    if again or not batch.system.stack.kernels.eager:
        return 0.0
    return 4.0 if batch.system.lora_rank else 6.0


def _mixture(batch: MicroBatch, ffn: MoeFfn, recompute: Recompute) -> Array:
    precision, d = batch.system.precision, batch.system.model.d_model
    again = _run_again(recompute)[1]
    narrow, start = precision.gemm_bytes, precision.activation_input_bytes
    inner = ffn.d_expert / as_array(batch.runs.expert_tp)
    per_pair = narrow * ffn.expert_d_in(d) + start * (ffn.matrices - 1) * inner + (0.0 if again else narrow * inner)
    normed = 2.0 if again else 4.0  # bytes of the input of the norm, and of its output
    kept = batch.expert_tokens() * per_pair + batch.tokens * (normed * d / batch.spread + 4.0 * ffn.num_experts)
    shared = ffn.shared()
    return kept + (_dense(batch, shared, recompute, False, norm=False) if shared else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainMemory:
    """Bytes on the fullest chip, run by run.

    Args:
        weights: weights as multiplied, including gathered layers under ZeRO 3 [bytes].
        gradients: gradients as accumulated [bytes].
        optimizer: master weights and moments [bytes].
        activations: activations of all micro-batches in flight, and of the layer in progress [bytes].
        logits: logits of the last or only stage [bytes].
        runtime, margin: driver and buffers; allocator fragments [bytes].
        total: sum.
        in_flight: micro-batches whose activations the first stage holds at once [count].
    """

    weights: Array
    gradients: Array
    optimizer: Array
    activations: Array
    logits: Array
    runtime: Array
    margin: Array
    total: Array
    in_flight: Array

    @property
    def allocated(self) -> Array:
        """What programs allocate: without driver and fragments [bytes]."""
        return self.total - self.runtime - self.margin

    def at(self, index: int) -> dict[str, float]:
        """Memory of a single run, as plain numbers."""
        named = {f.name: float(getattr(self, f.name)[index]) for f in fields(self)}
        return {(name if name == "in_flight" else f"{name}_bytes"): value for name, value in named.items()}


def micro_batches_in_flight(runs: Runs, micro_batches: Array) -> Array:
    """Activations of the fullest stage, in units of one micro-batch in a whole stage [count].

    GPipe m; 1F1B min(p, m); interleaved that times 1 + (p - 1)/(p v); ZB-H1 and ZB-V p, ZB-H2 2 p - 1, DualPipe p + 1.

    Sources: Korthikanti et al. 2022, section 4.2.3; Qi et al. 2023 (arXiv:2401.10241); DualPipe README.
    """
    p, v, m = as_array(runs.pp), as_array(runs.virtual_pp), as_array(micro_batches)
    ahead = np.minimum(p, m) * (1.0 + (p - 1.0) / (p * v) * (v > 1))
    held: dict[str, Array] = {"1f1b": ahead, "interleaved": ahead, "gpipe": m, "zb-h1": p, "zb-v": p}
    held |= {"zb-h2": 2.0 * p - 1.0, "dualpipe": p + 1.0}
    return np.minimum(by_name(runs.schedule, SCHEDULES, held), m)


def last_in_flight(runs: Runs, micro_batches: Array) -> Array:
    """The same of the last stage: 1F1B 1, interleaved ((v - 1) p + 1)/v; under other schedules as on the fullest.

    The last stage of 1F1B works each micro-batch backward at once; interleaved it has the first v - 1 of its parts of p
    micro-batches in store by then. Where the gradient of the weights waits, what was stored waits with it.
    """
    p, v, m = as_array(runs.pp), as_array(runs.virtual_pp), as_array(micro_batches)
    plain = by_name(runs.schedule, SCHEDULES, {name: float(name in ("1f1b", "interleaved")) for name in SCHEDULES})
    return np.where(plain > 0.0, np.minimum(((v - 1.0) * p + 1.0) / v, m), micro_batches_in_flight(runs, micro_batches))


def train_memory(
    batch: MicroBatch, *, dropout: bool = False, runtime_bytes: float = RUNTIME_BYTES, margin: float = MARGIN
) -> TrainMemory:
    """Memory of the fullest chip, by run.

    Args:
        dropout: whether dropout masks are stored.
        runtime_bytes: memory of driver and buffers [bytes].
        margin: share lost to fragmentation [1].
    """
    runs, system, pp = batch.runs, batch.system, as_array(batch.runs.pp)
    held = shards(system, runs)
    flight = micro_batches_in_flight(runs, batch.per_step)
    per_micro_batch, again = activations_of(batch, dropout)
    mean = per_micro_batch / pp
    logits = logits_of(batch)
    dual = runs.schedule == SCHEDULES.index("dualpipe")
    alone = np.where(pp == 1, logits, 0.0)
    # the first stage, and the last; DualPipe holds two stages: two of the middle, or the first and the last
    layers = (np.where(dual, 2.0, 1.0) * held.largest, held.last + np.where(dual, held.largest, 0.0))
    ends = (np.where(dual, 0.0, held.ends), np.where(dual, 2.0, 1.0) * held.ends)
    behind = last_in_flight(runs, batch.per_step) * held.last
    kept = (flight * mean * held.largest, np.where(dual, flight * (held.largest + held.last) / 2.0, behind) * mean)
    late = late_gradients(batch)
    moments: list[dict[str, Array]] = []
    for index, shown in enumerate((alone, logits)):
        states = states_of(batch, held, layers[index], ends[index])
        first = states | {"gradients": np.where(late, 0.0, states["gradients"])}
        moments += [  # logits are gone when the backward pass comes to the layers
            first | {"activations": kept[index], "logits": shown},
            first | {"activations": kept[index] + again, "logits": 0.0 * shown},
            states | {"activations": np.where(late, again, 0.0), "logits": 0.0 * shown},  # what was stored is gone
        ]
    totals = [sum(moment.values(), np.zeros(len(runs))) for moment in moments]
    used, fullest = np.max(totals, axis=0), np.argmax(totals, axis=0)
    return TrainMemory(
        **{name: np.choose(fullest, [moment[name] for moment in moments]) for name in moments[0]},
        runtime=runtime_bytes * np.ones(len(runs)),
        margin=margin * used,
        total=used * (1.0 + margin) + runtime_bytes,
        in_flight=flight,
    )


def late_gradients(batch: MicroBatch) -> Array:
    """Whether gradients come only as stored activations go: in a step of one micro-batch, where they are allocated by
    the backward pass and freed behind the update; by run."""
    return batch.system.stack.parallelism.fsdp2 & (batch.per_step <= 1.0)


def activations_of(batch: MicroBatch, dropout: bool = False) -> tuple[Array, Array]:
    """(activations that one micro-batch stores in the whole stack, activations recomputed in one layer) [bytes]."""
    runs, none = batch.runs, np.zeros(len(batch.runs))
    counts = np.bincount(runs.recompute, minlength=len(RECOMPUTE))
    asked: list[Recompute] = [name for name, count in zip(RECOMPUTE, counts, strict=True) if count]
    working, left = none, dict.fromkeys(RECOMPUTE, none)  # of the largest layer, of which "full" leaves nothing
    for index in range(len(batch.system.model.layer_groups)):
        size = layer_bytes(batch, index, "selective", dropout=dropout)
        for name in asked:
            if name not in WHOLE_LAYERS:
                left[name] = np.where(size > working, layer_bytes(batch, index, name, dropout=dropout), left[name])
        working = np.maximum(working, size)
    kept = dict.fromkeys(RECOMPUTE, none) | {name: stack_bytes(batch, name, dropout=dropout) for name in asked}
    # while the gradients of a layer are computed, with what it stored; scores are not counted
    again = {name: np.maximum(working - one, 0.0) for name, one in left.items()}
    kept_bytes, again_bytes = (by_name(runs.recompute, RECOMPUTE, values) for values in (kept, again))
    return kept_bytes, again_bytes + gathered_bytes(batch)


def logits_of(batch: MicroBatch) -> Array:
    """Logits of a micro-batch on a chip of the last stage, while the loss is worked on [bytes].

    With those of all micro-batches in bf16 where the last stage of a pipeline keeps its outputs until the step ends.
    """
    system, runs = batch.system, batch.runs
    outputs = 2.0 * batch.per_step * (runs.pp > 1) if system.stack.parallelism.fsdp2 else 0.0
    per_token = (system.stack.memory.logit_bytes + outputs) * system.model.vocab_size * (1.0 + system.mtp_layers)
    return batch.tokens * per_token / as_array(runs.tp)


def gathered_bytes(batch: MicroBatch) -> Array:
    """Keys and values of whole sequences, where a method of context parallelism gathers them for a layer [bytes]."""
    runs, system = batch.runs, batch.system
    if not context_method(system.stack.parallelism.context).gathers:
        return np.zeros(len(runs))
    cores = system.model.cores().values()
    each = (as_array(core.kv_elements_per_token(runs.tp)) for core in cores)
    widest = np.maximum.reduce([np.zeros(len(runs)), *(one * np.ones(len(runs)) for one in each)])
    return 2.0 * widest * batch.sequences * system.seq_len * (runs.cp > 1)


def states_of(
    batch: MicroBatch, held: Shards, layers: Array, ends: Array, *, experts_only: bool = False
) -> dict[str, Array]:
    """Weights, gradients and optimiser states of a device with a multiple of the layers of the mean stage [bytes].

    Args:
        layers: of the device over those of the mean stage [1].
        ends: parameters of embedding and head [elements].
        experts_only: leave everything out but routed experts.
    """
    if experts_only:
        none = 0.0 * held.dense
        held, ends = replace(held, dense=none, layer=none, adapters=none), none
    runs, system, precision = batch.runs, batch.system, batch.system.precision
    dense, experts = held.dense * layers + ends, held.experts * layers
    zero = system.stack.parallelism.zero_between(runs)
    over, expert_over = as_array(runs.dp) * runs.cp / runs.copies(), runs.expert_dp() / runs.copies()

    def cut(least: int, dense: Array, experts: Array | float = 0.0) -> Array:
        return np.where(zero >= least, dense / over + experts / expert_over, dense + experts)

    def spread(size: float, least: int) -> Array:
        if system.lora_rank:  # only adapters have gradients and optimiser states
            return size * cut(least, held.adapters * layers)
        return size * cut(least, dense, experts)

    weights = precision.weight_bytes * cut(3, dense, experts)
    if system.stack.parallelism.fsdp2 and not system.lora_rank:  # those that are sharded are the optimiser's
        weights = np.where(zero >= 3, precision.weight_bytes * ends, weights)  # the root's stay gathered
    if precision.frozen_bytes is not None:  # embedding and head stay as they are; one layer at a time is written out
        weights = precision.frozen_bytes * cut(3, held.dense * layers, experts) + precision.weight_bytes * cut(3, ends)
        weights = weights + precision.weight_bytes * held.layer
    if system.lora_rank:
        weights = weights + spread(2.0, 3)
    weights = weights + np.where(zero >= 3, 2.0 * precision.weight_bytes * held.layer, 0.0)
    if precision.quantised:  # the narrow copies that products read, both orders of them, of one layer at a time
        weights = weights + 2.0 * precision.gemm_bytes * held.layer
    return {
        "weights": weights,
        "gradients": spread(system.stack.memory.gradient_bytes, 2),
        "optimizer": spread(precision.optimizer_bytes, 1),
    }


def cheapest_recompute(batch: MicroBatch, hbm_bytes: float) -> list[str]:
    """The stack's cheapest recompute with which each run fits, and if nothing does, as the memory model is then off.

    Args:
        hbm_bytes: memory of a chip [bytes].
    """
    chosen = np.full(len(batch.runs), -1)
    kinds = batch.system.stack.kinds_of_recompute()
    for name in kinds:
        number = RECOMPUTE.index(name)
        runs = replace(batch.runs, recompute=np.full(len(batch.runs), number))
        fits = train_memory(replace(batch, runs=runs)).total <= hbm_bytes
        chosen = np.where((chosen < 0) & fits, number, chosen)
    return [RECOMPUTE[number] if number >= 0 else kinds[0] for number in chosen]

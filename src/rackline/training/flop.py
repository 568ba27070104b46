"""FLOP of a training step, those that the model needs and those that the hardware executes, and its energy."""

from __future__ import annotations

import numpy as np

from rackline.arch import Core, Model
from rackline.hardware import drawn_w
from rackline.passes.features import Array, FloatLike, as_array
from rackline.training.kernels import repeated_flop
from rackline.training.runs import RECOMPUTE, Runs, by_name
from rackline.training.step import StepTime, row_table
from rackline.training.system import MicroBatch
from rackline.training.work import work_of


def attention_flop(model: Model, seq_len: float, *, causal: bool = False) -> float:
    """FLOP of the attention products of one sequence, forward [FLOP].

    A = 4 L H D s² (scores and values, 2 FLOP a multiply-add) over the whole square of query and key, with which most
    published MFU are counted; a causal mask leaves s (s + 1) / 2 of the s² pairs, half of it.

    Args:
        seq_len: s, sequence length [tokens].
        causal: count only the pairs of a causal mask; else the whole square.

    Sources: Chowdhery et al. 2022 (PaLM, arXiv:2204.02311), appendix B: 12 L H D s per token, forward and backward;
        Narayanan et al. 2021 (Megatron, arXiv:2104.04473), equation 3, likewise; Dao 2023 (FlashAttention-2,
        arXiv:2307.08691), section 4.1: half of it with a causal mask.
    """

    def per_head(core: Core) -> float:
        pairs = float(core.attention_pairs(seq_len, 0.0))
        # a window or a choice of blocks leaves fewer pairs than the causal half, and is counted as it is
        full = not causal and pairs >= 0.999 * seq_len * (seq_len + 1.0) / 2.0
        scores = core.prefill_flop_per_pair * (2.0 * pairs if full else pairs)
        return scores + core.chunk_flop_per_token * seq_len

    return sum(
        group.count * core.num_q_heads * per_head(core)
        for group in model.layer_groups
        for core in group.attention.cores()
    )


def model_flop(
    model: Model,
    seq_len: float,
    sequences: FloatLike,
    *,
    causal: bool = False,
    frozen: bool = False,
    packed_len: float = 0.0,
) -> FloatLike:
    """FLOP that a step needs: 6 per token and active parameter, and three times the attention products.

    model FLOP = B (6 N_active s + 3 A(s)), without the embedding lookup, with the head; 4 instead of 6 if the weights
    are frozen and adapters are trained.

    Args:
        seq_len: s [tokens].
        sequences: B [sequences], any shape.
        causal: see `attention_flop`.
        frozen: whether weights get no gradient.
        packed_len: length of the samples packed into a sequence, within which attention stays; 0 for whole sequences
            [tokens].

    Returns:
        [FLOP], shape of `sequences`.

    Sources: Chowdhery et al. 2022 (PaLM, arXiv:2204.02311), appendix B.
    """
    sample = min(packed_len, seq_len) or seq_len
    attention = attention_flop(model, sample, causal=causal) * (seq_len / sample)
    return as_array(sequences) * ((4.0 if frozen else 6.0) * model.active_params * seq_len + 3.0 * attention)


def mfu(model_flop_per_step: FloatLike, step_s: FloatLike, num_chips: FloatLike, peak_flop_per_s: float) -> FloatLike:
    """Model FLOP utilisation: FLOP that the model needs over the peak of the chips in that time.

    >>> float(mfu(1e15, 1.0, 2, 1e15))
    0.5
    """
    return as_array(model_flop_per_step) / (as_array(step_s) * num_chips * peak_flop_per_s)


def hardware_share(model: Model, runs: Runs, seq_len: float) -> Array:
    """Executed FLOP over model FLOP: 4/3 of the layers under full recompute and in a reversible stack, attention again
    under selective, what `repeated_flop` names under the other kinds."""
    forward = 2.0 * model.active_params * seq_len + attention_flop(model, seq_len)
    again = forward - 2.0 * model.vocab_size * model.d_model * seq_len
    products = repeated_flop(model)
    extra = {name: seq_len * products.get(name, 0.0) for name in RECOMPUTE}
    extra |= {"selective": attention_flop(model, seq_len), "full": again, "reversible": again}
    return 1.0 + by_name(runs.recompute, RECOMPUTE, extra) / (3.0 * forward)


def training_w(batch: MicroBatch, step: StepTime, slowdown: float = 1.0) -> Array:
    """Mean power of a chip over a step, one value per run; not a number where nothing is known of it [W].

    Args:
        slowdown: of the step over this one, the rest of which draws idle power [1].

    Equation:
        idle + micro-batches / pp · joules of a micro-batch · (1 + recompute / (forward + input + weight)) / step

    at most its limit. Rows are those of the whole layer stack, of which a stage has 1/pp.

    Assumes: recomputed kernels draw what the others draw on average; the exchange of gradients and the optimiser, a few
    percent of a step, draw idle power.
    """
    chip = batch.system.cluster.chip
    if chip.power is None:
        return np.full(len(batch.runs), np.nan)
    features = {name: as_array(value)[:, None] for name, value in batch.features().items()}
    joules = row_table(batch, work_of(batch)).joule_table().seconds(features)[:, 0]
    again = 1.0 + step.recompute / np.maximum(step.forward + step.input + step.weight, 1e-12)
    return drawn_w(chip, joules * again * batch.per_step / as_array(batch.runs.pp), slowdown * step.step)

"""Where compute and memory balance: the batch, the context, and what a known crossover implies about a model."""

from __future__ import annotations

import numpy as np

from rackline.checked import Num, plain, positive


@positive(at_least_one=("total_over_active",))
def balance_batch(ridge: Num, total_over_active: Num) -> Num:
    """Batch at which reading the weights takes as long as multiplying with them.

    B* = R * N_total / N_active

    Args:
        ridge: R of `dimensionless_ridge` [multiplies per weight read], any shape.
        total_over_active: N_total / N_active, the lecture's sparsity, 1 when dense [ratio, >= 1], broadcasts.

    Returns:
        Sequences, broadcast shape; independent of the size of the model and of the number of chips.

    Raises:
        InputError: a value that is not positive and finite, or total_over_active below 1.

    Assumes: KV cache ignored. Parameters, not experts, give the ratio: 256/32 experts say 8, but
        700e9/37e9 parameters say 19.

    Sources: lecture C20, C21, C25; C13 (it is also the cost of batch 1 over the cost floor).

    >>> balance_batch(300.0, 8.0)
    2400.0
    """
    return plain(ridge * total_over_active)


@positive(zero=("context_len", "kv_bytes_per_token"))
def balance_batch_with_kv(
    ridge: Num,
    total_params: Num,
    active_params: Num,
    weight_bytes: Num,
    context_len: Num,
    kv_bytes_per_token: Num,
) -> Num:
    """Batch at which all memory traffic, KV included, takes as long as the products.

    B* = R * N_total / (N_active - R * L * kv_bytes_per_token / weight_bytes)

    Args:
        ridge: R of `dimensionless_ridge` at this `weight_bytes` [multiplies per weight read], any shape.
        total_params: N_total [elements], broadcasts.
        active_params: N_active [elements], broadcasts.
        weight_bytes: bytes per weight [bytes], broadcasts.
        context_len: L [tokens], 0 allowed, broadcasts.
        kv_bytes_per_token: KV cache of one token over all layers [bytes], 0 allowed, broadcasts.

    Returns:
        Sequences, broadcast shape; inf from the crossover context on, where no batch is compute bound.

    Raises:
        InputError: a value that is negative or not finite, or a 0 where none is allowed.

    Assumes: `pass_s`. With L = 1 and the activation bytes of one row as KV it is the balance of one product.

    Sources: lecture C23.

    >>> round(balance_batch_with_kv(300.0, 700e9, 37e9, 1.0, 50e3, 1000.0))
    9545
    >>> balance_batch_with_kv(300.0, 700e9, 37e9, 1.0, 200e3, 1000.0)
    inf
    """
    left = np.asarray(active_params - ridge * context_len * kv_bytes_per_token / weight_bytes)
    numerator = np.broadcast_to(ridge * total_params, np.broadcast_shapes(left.shape, np.shape(ridge * total_params)))
    return plain(np.divide(numerator, left, out=np.full(numerator.shape, np.inf), where=left > 0.0))


@positive()
def crossover_context(active_params: Num, kv_bytes_per_token: Num, flop_per_s: Num, hbm_bytes_per_s: Num) -> Num:
    """Context at which reading a sequence's KV cache takes as long as its weight products.

    L* = 2 * N_active * hbm_bytes_per_s / (flop_per_s * kv_bytes_per_token)

    Args:
        active_params: N_active [elements], any shape.
        kv_bytes_per_token: KV cache of one token over all layers [bytes], broadcasts.
        flop_per_s: dense compute rate [FLOP/s], broadcasts.
        hbm_bytes_per_s: memory bandwidth of the same chips [bytes/s], broadcasts.

    Returns:
        Tokens, broadcast shape. L / L* is the KV slope over the compute slope (`kv_over_compute`).

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: dense attention; a batch so large that the weights do not count.

    Sources: lecture C15, C97, C99.

    >>> round(crossover_context(37e9, 70272.0, 989e12, 3.35e12))
    3567
    """
    return plain(2.0 * active_params * hbm_bytes_per_s / (flop_per_s * kv_bytes_per_token))


@positive()
def kv_bytes_per_token_from_crossover(
    active_params: Num, context_len: Num, flop_per_s: Num, hbm_bytes_per_s: Num
) -> Num:
    """KV bytes per token of a model whose memory and compute times cross at a known context.

    kv_bytes_per_token = 2 * N_active * hbm_bytes_per_s / (flop_per_s * L)

    Args:
        active_params: N_active [elements], any shape.
        context_len: L, the crossover, for example where a price steps up [tokens], broadcasts.
        flop_per_s: dense compute rate [FLOP/s], broadcasts.
        hbm_bytes_per_s: memory bandwidth of the same chips [bytes/s], broadcasts.

    Returns:
        Bytes per token, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: raw FLOP per byte. The lecture puts its dimensionless 300 here, which is right where
        flop_per_s / hbm_bytes_per_s = 600 (FP8 on an H100); BF16 there gives twice as much.

    Sources: lecture C99, C100.

    >>> round(kv_bytes_per_token_from_crossover(100e9, 200e3, 600e12, 1e12))
    1667
    """
    return plain(2.0 * active_params * hbm_bytes_per_s / (flop_per_s * context_len))


@positive()
def kv_bytes_per_token(unique_layers: Num, num_kv_heads: Num, head_dim: Num, element_bytes: Num) -> Num:
    """KV cache of one token: a key and a value for each KV head of each layer that keeps its own cache.

    kv_bytes_per_token = 2 * unique_layers * num_kv_heads * head_dim * element_bytes

    Args:
        unique_layers: layers whose KV is not shared with another layer [count], any shape.
        num_kv_heads: KV heads per layer [count], broadcasts.
        head_dim: elements per head [elements], broadcasts.
        element_bytes: bytes per element of the cache [bytes], broadcasts.

    Returns:
        Bytes per token, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: keys and values have the same head_dim; nothing is compressed (not MLA).

    Sources: lecture C101, C102.

    >>> kv_bytes_per_token(1.0, 8.0, 128.0, 1.0)
    2048.0
    """
    # 2: one key and one value
    return plain(2.0 * unique_layers * num_kv_heads * head_dim * element_bytes)


@positive()
def mfu_at_context(context_len: Num, crossover_context: Num) -> Num:
    """MFU against context when the weights are amortised: full up to the crossover, then falling.

    MFU = min(1, L* / L)

    Args:
        context_len: L [tokens], any shape.
        crossover_context: L* of `crossover_context` [tokens], broadcasts.

    Returns:
        Fraction, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: dense attention; a batch so large that the weights do not count.

    Sources: lecture C16.

    >>> mfu_at_context(200e3, 100e3)
    0.5
    """
    return plain(np.minimum(1.0, crossover_context / context_len))


@positive()
def sparse_read_tokens(context_len: Num, block_tokens: Num | float = 1.0) -> Num:
    """Tokens of KV that one query reads under sparse attention with a square root.

    tokens = min(L, sqrt(n * L))

    Args:
        context_len: L [tokens], any shape.
        block_tokens: n, tokens that are read together [tokens], broadcasts.

    Returns:
        Tokens, broadcast shape. L / tokens = sqrt(L / n) is the traffic saved.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: the lecture's square root. Published sparse attention reads a fixed top-k instead (2,048 plus an
        index in DeepSeek V3.2): a root needs blocks that grow with the root of L.

    Sources: lecture C17.

    >>> sparse_read_tokens(1e6)
    1000.0
    """
    return plain(np.minimum(context_len, np.sqrt(block_tokens * context_len)))


@positive()
def attention_flop_per_context_token(num_layers: Num, num_q_heads: Num, qk_head_dim: Num, v_head_dim: Num) -> Num:
    """FLOP that one new token spends on each token of its context.

    slope = 2 * num_layers * num_q_heads * (qk_head_dim + v_head_dim)

    Args:
        num_layers: layers that attend to the whole context [count], any shape.
        num_q_heads: query heads per layer [count], broadcasts.
        qk_head_dim: elements of a query and of a key [elements], broadcasts.
        v_head_dim: elements of a value [elements], broadcasts. DeepSeek V3 has 192 and 128 expanded,
            576 and 512 absorbed.

    Returns:
        FLOP per token of context, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: softmax is not counted.

    Sources: lecture C111.

    >>> attention_flop_per_context_token(80.0, 64.0, 128.0, 128.0)
    2621440.0
    """
    return plain(2.0 * num_layers * num_q_heads * (qk_head_dim + v_head_dim))


@positive()
def attention_equals_weights_context(active_params: Num, attention_flop_per_context_token: Num) -> Num:
    """Context at which attention needs as many FLOP as the weights.

    L = 2 * N_active / slope

    Args:
        active_params: N_active [elements], any shape.
        attention_flop_per_context_token: slope, see the function of that name [FLOP per token], broadcasts.

    Returns:
        Tokens, broadcast shape.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: decode, one new token that sees L earlier ones.

    Sources: lecture C05, C111.

    >>> round(attention_equals_weights_context(70e9, 2621440.0))
    53406
    """
    return plain(2.0 * active_params / attention_flop_per_context_token)

"""Keys of Hugging Face configurations that do not shape the model, and the error for keys that no family reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from rackline.arch.hf_config import HfConfig, ReadKeys

TOWERS = ("vision_config", "audio_config", "img_token_compression_config", "projector_hidden_size")
"""Parts for images and sound."""

_NAMES = frozenset(
    """
    _name_or_path architectures auto_map dtype torch_dtype transformers_version model_type quantization_config use_cache
    output_router_logits router_aux_loss_coef pretraining_tp ep_size max_position_embeddings max_sequence_length
    model_max_length rotary_dim rotary_emb_base partial_rotary_factor original_max_position_embeddings scoring_func
    norm_topk_prob routed_scaling_factor moe_router_dtype moe_router_scaling_factor moe_router_activation_func
    moe_renormalize topk_group n_group num_expert_group use_grouped_topk aux_loss_alpha seq_aux final_logit_softcapping
    attn_logit_softcapping query_pre_attn_scalar attention_value_scale logit_scale swiglu_limit swiglu_alpha
    activation_situ_beta activation_situ_linear_beta use_gemma_norm hc_eps hc_sinkhorn_iters compress_rope_theta
    num_logits_to_keep rescale_prenorm_residual residual_in_fp32 time_step_floor time_step_limit time_step_max
    time_step_min time_step_rank mamba_ssm_cache_dtype mamba_ssm_dtype mamba_hidden_act use_mamba_kernels expand
    moe_shared_expert_overlap mtp_hybrid_override_pattern mtp_layers_block_type mtp_use_dedicated_embeddings
    output_gate_type use_bidirectional_attention mla_use_nope attn_res_block_size index_share_for_mtp_iteration
    index_skip_topk_offset index_topk_freq index_topk_pattern qk_head_dim use_mrope attn_temperature_tuning floor_scale
    attn_scale for_llm_compressor cache_implementation experts_implementation initial_context_length swa_rope_theta
    vocab_size_per_layer_input is_decoder is_encoder_decoder add_cross_attention tie_encoder_decoder
    cross_attention_hidden_size chunk_size_feed_forward pruned_heads tokenizer_class id2label label2id problem_type
    return_dict return_dict_in_generate task_specific_params finetuning_task prefix torchscript use_bfloat16
    language_model_only temperature top_k top_p typical_p do_sample early_stopping length_penalty max_length min_length
    no_repeat_ngram_size num_beams num_beam_groups num_return_sequences diversity_penalty repetition_penalty
    bad_words_ids forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens
    encoder_no_repeat_ngram_size exponential_decay_length_penalty remove_invalid_values output_attentions
    output_hidden_states output_scores tf_legacy_loss attn_pdrop embd_pdrop resid_pdrop emb_pdrop init_std eps
    draft_vocab_size eagle_config target_hidden_size has_lm_head_own_embedding
    router_scaling_factor route_scale per_layer_config decoder_start_token_id norm_type
    """.split()  # noqa: SIM905
)
_PATTERNS = re.compile(
    r"_token_id$|_token_ids$|_token_index$|^rope_|_rope$|rope_interleave|dropout|jitter|_eps(ilon)?$|^init|initializer"
)
_FULL = "full_attention"


def _says_nothing(key: str, values: ReadKeys) -> bool:
    """Whether a key that shapes other models leaves this one as it is by its value."""
    if key in ("sliding_window", "max_window_layers"):  # behind a switch that is off
        return "use_sliding_window" in values and not values["use_sliding_window"]
    if key == "layer_types":
        kinds = values[key]
        return isinstance(kinds, list) and all(kind == _FULL for kind in cast("list[object]", kinds))
    return values[key] == {}


SYNONYMS = (
    ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act"),
    ("sliding_window", "sliding_window_size", "window_size", "attention_window"),
    ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    ("hidden_size", "n_embd", "d_model", "dim_model", "embed_dim"),
    ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
    ("head_dim", "dim_head", "kv_channels", "attention_head_dim"),
    ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts"),
    ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "experts_per_token"),
    ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "n_dense_layers"),
    ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers"),
)
"""Names that published configurations give one number, some of them two at a time (Gemma 2 has hidden_act and
hidden_activation, sliding_window and sliding_window_size)."""


def _is_synonym(key: str, values: ReadKeys) -> bool:
    """Whether a key only repeats what another name of the same number, which was read, says."""
    others = next((names for names in SYNONYMS if key in names), ())
    same = [other for other in others if other != key and values.was_read(other)]
    if key in SYNONYMS[0]:  # of the width of a block, gelu is gelu, exact or by tanh
        return any(_family(values[other]) == _family(values[key]) for other in same)
    return any(values[other] == values[key] for other in same)


def _family(activation: object) -> str:
    return re.split(r"_|(?=\d)", str(activation))[0]


def unread_keys(text: HfConfig) -> list[str]:
    """Keys with a value that the family did not read and that are not known to leave the shape as it is.

    Args:
        text: the configuration after the family has read it.
    """
    values = text.values
    if not isinstance(values, ReadKeys):
        return []
    return [
        key
        for key in values.unread()
        if not (
            key in _NAMES
            or key in TOWERS
            or _PATTERNS.search(key)
            or _says_nothing(key, values)
            or _is_synonym(key, values)
        )
    ]


def shaping_keys(values: Mapping[str, object]) -> list[str]:
    """Keys of a configuration that nobody has read and that may shape the model."""
    return [
        key
        for key, value in values.items()
        if value not in (None, False, []) and key != "model_type" and not (key in _NAMES or _PATTERNS.search(key))
    ][:_MOST_KEYS]


_MOST_KEYS = 40
"""Keys that an error names."""

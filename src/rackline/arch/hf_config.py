"""Typed access to the keys of a Hugging Face configuration, keys that shape nothing, and parts that families share."""

from __future__ import annotations

import json
import re
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from rackline.errors import ConfigError, nearest_name

Table = dict[str, object]

LARGEST_COUNT = 100_000_000
"""No width, vocabulary or layer count of a transformer is larger; beyond it a value is a typing error."""


class ReadKeys(Mapping[str, object]):
    """A JSON object that remembers which of its keys were asked for, so that none is passed over in silence."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self._read: set[str] = set()

    def __getitem__(self, key: str) -> object:
        self._read.add(key)
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        self._read.add(str(key))
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def said(self, keys: Sequence[str]) -> list[object]:
        """Values of those of some keys that the object has and somebody asked for."""
        return [self._values[key] for key in keys if key in self._read and self._values.get(key) is not None]

    def unread(self) -> list[str]:
        """Keys with a value that says something and that nobody asked for."""
        return [key for key, value in self._values.items() if key not in self._read and value not in (None, False, [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class HfConfig:
    """A JSON object with typed access; every complaint names file and key. A null counts as absent.

    Args:
        values: of the object.
        where: file, for messages.
        prefix: of its keys in messages.
        dropped: what a family leaves out or takes as something simpler, in words, for all parts of the file.
    """

    values: Mapping[str, object]
    where: str
    prefix: str = ""
    dropped: list[str] = field(default_factory=list[str], compare=False)

    def fail(self, key: str, allowed: str, nearest: str | None = None) -> ConfigError:
        """Return the error for a key, with its value as given."""
        given = self.values.get(key)
        if given is None:
            nearest = nearest or (nearest_name(key, [k for k in self.values if k != key]))
            given = "null" if key in self.values else "no such key"
        elif isinstance(given, (list, dict)):
            given = f"a JSON {'array' if isinstance(given, list) else 'object'}"
        return ConfigError(what=f"{self.prefix}{key}", given=given, allowed=allowed, where=self.where, nearest=nearest)

    def require(self, holds: object, key: str, allowed: str) -> None:
        """Refuse the value of a key unless a condition holds."""
        if not holds:
            raise self.fail(key, allowed)

    def optional(self, key: str, minimum: int = 1) -> int | None:
        """A whole number, or None if absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= LARGEST_COUNT:
            raise self.fail(key, f"a whole number from {minimum} to {LARGEST_COUNT}")
        return value

    def count(self, key: str, *, default: int | None = None, minimum: int = 1) -> int:
        """A whole number; absent is an error unless a default is given."""
        found = self.optional(key, minimum)
        value = default if found is None else found
        if value is None:
            raise self.fail(key, f"a whole number from {minimum} to {LARGEST_COUNT}")
        return value

    def leave(self, *keys: str) -> None:
        """Note keys that the family knows and does not need."""
        for key in keys:
            self.values.get(key)

    def drop(self, how: str, *keys: str) -> None:
        """Note keys that the file has and the family leaves out, and how: every answer says so."""
        if given := [key for key in keys if self.values.get(key) not in (None, False, [])]:
            self.dropped.append(f"{how} ({', '.join(given)})")

    def same_as(self, key: str, other: str) -> None:
        """Refuse a second name of a number that contradicts the first."""
        self.require(
            self.optional(key) in (None, self.optional(other)),
            key,
            f"{other} {self.values.get(other)}, of which it is a second name",
        )

    def flag(self, key: str, *, default: bool) -> bool:
        """true or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return value

    def choice(self, key: str, table: Mapping[str, str], *, default: str | None = None) -> str:
        """A text out of a table, translated by it."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or value not in table:
            raise self.fail(key, "one of " + ", ".join(sorted(table)), nearest_name(value, table))
        return table[value]

    def items(self, key: str, table: Mapping[object, str], length: int) -> list[str] | None:
        """A list with one entry per layer, translated by a table; None if absent."""
        value = self.values.get(key)
        if value is None:
            return None
        allowed = f"a list of {length} entries, each one of {', '.join(map(str, table))}"
        if not isinstance(value, list):
            raise self.fail(key, allowed)
        entries = cast("list[object]", value)
        self.require(
            len(entries) == length and all(isinstance(e, (str, int)) and e in table for e in entries), key, allowed
        )
        return [table[entry] for entry in entries]

    def listed(self, key: str, table: Mapping[object, str], length: int) -> list[str]:
        """The list of `items`, which must be there."""
        found = self.items(key, table, length)
        if found is None:
            raise self.fail(key, f"a list of {length} entries")
        return found

    def layer_numbers(self, key: str) -> list[int]:
        """Layer numbers of a list; empty where there is none."""
        value: object = self.values.get(key) or []
        if not isinstance(value, list) or not all(isinstance(one, int) for one in cast("list[object]", value)):
            raise self.fail(key, "a list of layer numbers")
        return cast("list[int]", value)

    def must_be_off(self, *keys: str) -> None:
        """Refuse flags that change the shape in a way that the family's reader does not know."""
        for key in keys:
            self.require(not self.flag(key, default=False), key, "false")

    def number(self, key: str) -> float:
        """A positive number, whole or not."""
        value = self.values.get(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= LARGEST_COUNT:
            raise self.fail(key, f"a number from above 0 to {LARGEST_COUNT}")
        return float(value)

    def element(self, key: str, index: int) -> HfConfig:
        """An object inside a list."""
        value = self.values.get(key)
        entry = cast("list[object]", value)[index] if isinstance(value, list) else None
        if not isinstance(entry, dict):
            raise self.fail(key, "a list of objects")
        return replace(self, values=cast("Table", entry), prefix=f"{self.prefix}{key}.{index}.")

    def with_defaults(self, defaults: Table) -> HfConfig:
        """The same configuration with values for keys that are absent or null; what is read of it stays known."""
        given = {key: self.values[key] for key in defaults if self.values.get(key) is not None}
        filled: Mapping[str, object] = ChainMap({**defaults, **given}, cast("Table", self.values))
        return replace(self, values=filled)

    def section(self, key: str) -> HfConfig:
        """A nested object."""
        value = self.values.get(key)
        if not isinstance(value, dict):
            raise self.fail(key, "an object")
        return replace(self, values=cast("Table", value), prefix=f"{self.prefix}{key}.")


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
    said = values.said([other for names in SYNONYMS if key in names for other in names if other != key])
    if key in SYNONYMS[0]:  # of the width of a block, gelu is gelu, exact or by tanh
        return any(_family(other) == _family(values[key]) for other in said)
    return values[key] in said


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


SILU = {"silu": "swiglu", "swish": "swiglu"}
GELU = {"gelu_pytorch_tanh": "geglu", "gelu": "geglu"}
LAYER_TYPES: dict[object, str] = {"sliding_attention": "window", "full_attention": "full"}


def stack(c: HfConfig, *, tied: bool = False) -> Table:
    return {
        "num_layers": c.count("num_hidden_layers"),
        "d_model": c.count("hidden_size"),
        "vocab_size": c.count("vocab_size"),
        "tied_embeddings": c.flag("tie_word_embeddings", default=tied),
    }


def windows(c: HfConfig, key: str, kinds: Sequence[str]) -> Table:
    """The window of some layers and the shortest pattern that repeats to their kinds."""
    if "window" not in kinds:
        return {}
    window: Table = {"window": c.count(key)}
    if "full" not in kinds:
        return window
    period = next(n for n in range(1, len(kinds) + 1) if all(k == kinds[i % n] for i, k in enumerate(kinds)))
    return window | {"pattern": list(kinds[:period])}


def window_everywhere(c: HfConfig) -> Table:
    """Mistral's rule: all layers have the window if there is one."""
    layers = c.count("num_hidden_layers")
    kinds = ["full" if c.optional("sliding_window") is None else "window"] * layers
    return windows(c, "sliding_window", c.items("layer_types", LAYER_TYPES, layers) or kinds)


def window_above(c: HfConfig) -> Table:
    """Qwen's rule: the layers from max_window_layers on have the window, if use_sliding_window is set."""
    if not c.flag("use_sliding_window", default=False):
        c.leave("sliding_window", "max_window_layers")  # behind a switch that is off
        return {}
    layers = c.count("num_hidden_layers")
    kinds = c.items("layer_types", LAYER_TYPES, layers)
    if kinds is None:
        full = min(layers, c.count("max_window_layers", minimum=0))
        kinds = ["full"] * full + ["window"] * (layers - full)
    return windows(c, "sliding_window", kinds)


def every(c: HfConfig, step: int) -> Table:
    """Layers step - 1, 2 step - 1, ... are mixtures, the others dense."""
    c.require(step <= c.count("num_hidden_layers"), "num_hidden_layers", f"at least the spacing {step} of the mixtures")
    return {"first_dense_layers": step - 1, "every": step}


def ffn(c: HfConfig, width: int, *, bias: bool = False) -> Table:
    return {"kind": c.choice("hidden_act", SILU, default="swiglu"), "d_ff": width, "bias": bias}


def experts(c: HfConfig, number_key: str, width: int, chosen_key: str = "num_experts_per_tok") -> Table:
    number = c.count(number_key)
    chosen = c.count(chosen_key)
    c.require(chosen <= number, chosen_key, f"at most {number_key} {number}")
    return {"num_experts": number, "experts_per_token": chosen, "d_expert": width}


Layer = Mapping[str, Table | None]
"""attention, ffn, moe of one layer; None or absent where the layer has none."""


def layered(
    c: HfConfig, layers: Sequence[Layer], *, tied: bool = False, d_model: int | None = None, **more: object
) -> Table:
    """Architecture table of a list of layers, first to last; equal ones are counted together.

    Args:
        c: the configuration, for width, vocabulary and tying.
        layers: one entry per layer.
        tied: default of tie_word_embeddings.
        d_model: where it is not called hidden_size.
        more: further keys of the table.
    """
    keys = [json.dumps(layer, sort_keys=True) for layer in layers]
    counts, tables = Counter(keys), dict(zip(keys, layers, strict=True))
    groups: list[Table] = [
        {
            "name": f"group-{number}",
            "count": counts[key],
            **{part: table for part, table in layer.items() if table is not None},
        }
        for number, (key, layer) in enumerate(tables.items())
    ]
    return {
        "num_layers": len(layers),
        "d_model": d_model or c.count("hidden_size"),
        "vocab_size": c.count("vocab_size"),
        "tied_embeddings": c.flag("tie_word_embeddings", default=tied),
        "layers": groups,
        **more,
    }


def layer_count(c: HfConfig, key: str = "num_hidden_layers") -> int:
    """Number of layers, bounded so that a list of layers stays small."""
    layers = c.count(key)
    c.require(layers <= MOST_LAYERS, key, f"a whole number from 1 to {MOST_LAYERS}")
    return layers


MOST_LAYERS = 10_000
"""No model has more; beyond it a value is a typing error."""

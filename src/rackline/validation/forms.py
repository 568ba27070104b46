"""The form of each kind of case: its keys, which of them are required, and its possible measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast

from rackline.errors import InputError, unknown_name
from rackline.fitting.tables import FORMATS as OPERATIONS

Shape = Literal[
    "text",
    "version",
    "count",
    "length",
    "prompt",
    "number",
    "share",
    "words",
    "table",
    "tables",
    "counts",
    "detail",
    "flag",
    "pool",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The keys of one kind of case.

    Args:
        required, optional: key → shape of its value, besides the keys that all kinds have.
        measured: keys of `measured` → the largest plausible value, in SI units.
        unsupported: why cases of this kind cannot be predicted yet; empty if they can.
    """

    required: Mapping[str, Shape]
    optional: Mapping[str, Shape]
    measured: Mapping[str, float]
    unsupported: str = ""


_COMMON: dict[str, Shape] = {
    "id": "version",
    "kind": "text",
    "source": "text",
    "stack": "text",
    "stack_version": "version",
    "config": "table",
    "architecture": "table",
    "precision_detail": "detail",
    "layout": "counts",
    "model": "text",
    "chip": "text",
    "num_chips": "count",
    "precision": "text",
    "measured": "table",
}
_DEPLOYED: dict[str, Shape] = {"chip": "text", "num_chips": "count", "precision": "text"}
_LENGTHS: dict[str, Shape] = {"input_len": "length", "output_len": "length"}
LARGEST = 1e30
_MOST = 1e9  # tokens, chips, requests
_DAY = 86400.0
_MOST_WATTS = 1e5  # of one chip; a wafer draws 23 kW
_SLOWEST_TOKEN = 10.0  # s; a mean time per token above it is taken to be in another unit

_OP_OPTIONAL: dict[str, Shape] = {
    name: "text" if name in form.texts else "number"
    for form in OPERATIONS.values()
    for name in (*form.texts, *form.sizes)
    if name != "num_chips"
}

FORMS: dict[str, Form] = {
    "serve": Form(
        required={**_DEPLOYED, **_LENGTHS, "concurrency": "count"},
        optional={
            "length_distribution": "text",
            "num_prompts": "count",
            "data_set": "text",
            "statistic": "text",
            "speculative": "text",
            "max_num_seqs": "count",
            "max_num_batched_tokens": "count",
            "memory_fraction": "share",
            "async_scheduling": "flag",
            "assumed": "words",
        },
        measured={
            "tpot_s": _SLOWEST_TOKEN,
            "ttft_s": 3600.0,
            "output_tokens_per_s": math.inf,
            "power_w_per_chip": _MOST_WATTS,
            "joules_per_output_token": math.inf,
        },
    ),
    "serve-disaggregated": Form(
        required={**_DEPLOYED, **_LENGTHS, "concurrency": "count", "prefill": "pool", "decode": "pool"},
        optional={"length_distribution": "text", "speculative": "text", "image": "version"},
        measured={"tpot_s": _SLOWEST_TOKEN, "ttft_s": 3600.0},
    ),
    "static-batch": Form(
        required={**_DEPLOYED, "batch_size": "count", "input_len": "prompt"},
        optional={"output_len": "length", "partitioning": "text", "offline": "flag"},
        measured={"prefill_s": _DAY, "token_s": _SLOWEST_TOKEN, "total_s": _DAY},
    ),
    "max-throughput": Form(
        required={**_DEPLOYED, **_LENGTHS},
        optional={
            "num_prompts": "count",
            "length_distribution": "text",
            "data_set": "text",
            "request_rate": "number",
            "max_num_seqs": "count",
            "max_num_batched_tokens": "count",
            "offline": "flag",
        },
        measured={"output_tokens_per_s": math.inf},
    ),
    "op": Form(
        required={"chip": "text", "op": "text"},
        optional={**_OP_OPTIONAL, "kernel": "text"},
        measured={"seconds": _DAY},
    ),
    "params": Form(
        required={},
        optional={},
        measured={"total_params": math.inf, "active_params": math.inf, "kv_bytes_per_token": math.inf},
    ),
    "train": Form(
        required={**_DEPLOYED, "global_batch": "count", "seq_len": "count"},
        optional={
            "micro_batch": "count",
            "recompute": "text",
            "num_layers": "count",
            "cluster": "text",
            "num_params": "number",
            "variant": "text",
            "fabric": "text",
            "activation_offload": "flag",
            "flops_kind": "text",
            "task": "text",
            "lora_rank": "count",
            "lora_targets": "text",
            "frozen": "text",
            "packed_len": "length",
        },
        measured={
            "step_s": _DAY,
            "tokens_per_s_per_chip": math.inf,
            "model_flop_per_s_per_chip": math.inf,
            "hardware_flop_per_s_per_chip": math.inf,
            "peak_bytes": math.inf,
        },
    ),
    "observed": Form(
        required={"requests": "tables"},
        optional={
            "hash_tokens": "count",
            "started": "text",
            "url": "text",
            "endpoint": "text",
            "served_name": "text",
            "interrupted": "flag",
            "load": "table",
            "generator": "table",
            "records": "table",
            "drafts": "count",
            "kv_tokens": "count",
            "prefix_caching": "flag",
            "max_num_seqs": "count",
            "max_num_batched_tokens": "count",
            "memory_fraction": "share",
        },
        measured={},
    ),
    "rl-step": Form(
        required={
            **_DEPLOYED,
            **_LENGTHS,
            "prompts": "count",
            "generations": "count",
            "longest": "length",
        },
        optional={
            "gen_layout": "counts",
            "algorithm": "text",
            "mode": "text",
            "staleness": "count",
            "partial": "flag",
            "assumed": "words",
            "engine": "text",
            "gen_chips": "count",
            "trained": "count",
            "train_batch": "count",
            "output_spread": "number",
            "memory_fraction": "share",
            "eager": "flag",
            "micro_batch": "count",
            "log_prob_batch": "count",
            "recompute": "text",
        },
        measured={
            "rl_step_s": _DAY,
            "rollouts_s": _DAY,
            "old_log_probs_s": _DAY,
            "reference_log_probs_s": _DAY,
            "log_probs_s": _DAY,
            "updates_s": _DAY,
            "transfer_s": _DAY,
        },
    ),
    "adapters": Form(
        required={
            **_DEPLOYED,
            "request_rate": "number",
            "duration_s": "number",
            "shortest": "length",
            "longest": "length",
            "kv_tokens": "count",
        },
        optional={"adapters": "count", "rank": "number", "arrival_cv": "number", "fewest": "counts"},
        measured={"requests_per_s": math.inf, "over_fewest_adapters": math.inf},
    ),
    "requests": Form(
        required={}, optional={}, measured={}, unsupported="is read from a runs.json with a requests.csv beside it"
    ),
}


def is_number(value: object) -> bool:
    """Whether a value is a finite number above 0, and not a Boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LARGEST


def fits(value: object, shape: Shape) -> bool:
    """Whether a value has the shape of its key."""
    return _SHAPES[shape][1](value)


def _is_count(value: Any) -> bool:
    return is_number(value) and value <= _MOST and float(value).is_integer()


def _are_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(one, str) or _is_count(one) for one in cast("dict[str, object]", value).values()
    )


def _is_pool(value: Any) -> bool:
    pool = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    return set(pool) == {"workers", "layout"} and _is_count(pool["workers"]) and _are_counts(pool["layout"])


def _is_list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(isinstance(one, kind) for one in cast("list[object]", value))


_SHAPES: Mapping[Shape, tuple[str, Callable[[Any], bool]]] = {
    "text": ("a text", lambda value: isinstance(value, str) and bool(value.strip())),
    "version": ("a text", lambda value: isinstance(value, str | int | float)),
    "count": ("a whole number of at least 1", _is_count),
    "length": ("a number of tokens of at least 1", lambda value: is_number(value) and 1.0 <= value <= _MOST),
    "prompt": (
        "a number of tokens, 0 where generation starts from nothing",
        lambda value: value == 0 or fits(value, "length"),
    ),
    "number": ("a number above 0", is_number),
    "share": ("a number above 0 and at most 1", lambda value: is_number(value) and value <= 1.0),
    "words": ("a list of texts", _is_list_of(str)),
    "table": ("an object", lambda value: isinstance(value, dict)),
    "tables": ("a list of objects", _is_list_of(dict)),
    "counts": ("an object of whole numbers of at least 1", _are_counts),
    "detail": ("an object or a text such as kv=bf16", lambda value: isinstance(value, str | dict)),
    "flag": ("true or false", lambda value: isinstance(value, bool)),
    "pool": ("an object with workers, a whole number of at least 1, and layout, an object of such numbers", _is_pool),
}
"""Shape → what it is in words, and whether a value has it."""


def find_problem(data: Mapping[str, object]) -> InputError | None:
    """The first problem of a case, or None: the key, what was given, what is allowed.

    Args:
        data: the parsed JSON object of one line.
    """
    kind = data.get("kind")
    if "kind" not in data:
        return InputError(what="kind", given="no such key", allowed=", ".join(FORMS))
    if not isinstance(kind, str) or kind not in FORMS:
        return unknown_name("kind", kind, FORMS)
    form = FORMS[kind]
    shapes = known_keys(kind)
    for key in ("id", *form.required):
        if data.get(key) is None:
            return InputError(what=key, given="nothing", allowed=f"{_SHAPES[shapes[key]][0]} (required for {kind})")
    for key, value in data.items():
        if key in shapes and value is not None and not fits(value, shapes[key]):
            return InputError(what=key, given=value, allowed=_SHAPES[shapes[key]][0])
    if kind not in ("op", "requests", "observed") and not any(data.get(k) for k in ("model", "config", "architecture")):
        return InputError(what="model", given="nothing", allowed="a name, or config, or architecture")
    return _measured_problem(data, form) or _kind_problem(kind, data)


@cache
def known_keys(kind: str) -> Mapping[str, Shape]:
    """All keys that a kind reads, with the shapes of their values."""
    return {**_COMMON, **FORMS[kind].required, **FORMS[kind].optional}


def _measured_problem(data: Mapping[str, object], form: Form) -> InputError | None:
    if not form.measured:
        return None
    measured = data.get("measured")
    allowed = ", ".join(form.measured)
    if not isinstance(measured, dict):
        return InputError(what="measured", given="nothing", allowed=f"an object with any of {allowed}")
    table = cast("dict[str, object]", measured)
    for key, value in table.items():
        if key not in form.measured:
            meant = next((known for known in form.measured if _same_quantity(key, known)), None)
            if meant is not None:
                return InputError(what=f"measured.{key}", given=key, allowed=f"{meant}, in SI units", nearest=meant)
            continue
        if not is_number(value):
            return InputError(what=f"measured.{key}", given=value, allowed="a plain number above 0, in SI units")
        limit = form.measured[key]
        if float(cast("float", value)) > limit:
            return InputError(
                what=f"measured.{key}", given=value, allowed=f"at most {limit:g}, in SI units (another unit?)"
            )
    if not any(key in form.measured for key in table):
        return InputError(what="measured", given=", ".join(table) or "nothing", allowed=f"any of {allowed}")
    return None


_UNITS = ("_s", "_ms", "_us", "_ns", "_min", "_h", "_seconds", "_per_s", "_per_min", "_per_hour", "")


def _same_quantity(key: str, known: str) -> bool:
    """Whether two keys name the same quantity in different units, such as tpot_ms and tpot_s."""
    if known == "seconds":
        return key in ("s", "ms", "us", "milliseconds", "microseconds", "latency_ms", "time_ms", "time_us")
    ending = "_per_s" if known.endswith("_per_s") else "_s" if known.endswith("_s") else None
    return ending is not None and key.lower() in {known.removesuffix(ending) + unit for unit in _UNITS}


def _kind_problem(kind: str, data: Mapping[str, object]) -> InputError | None:
    if kind == "op":
        op = str(data["op"])
        if op not in OPERATIONS:
            return unknown_name("op", op, OPERATIONS)
        missing = next((name for name in OPERATIONS[op].columns if data.get(name) is None), None)
        return (missing and InputError(what=missing, given="nothing", allowed=f"a value (required for {op})")) or None
    measured = cast("dict[str, float]", data.get("measured"))
    output_len = cast("float | None", data.get("output_len"))
    if kind == "static-batch":
        if output_len is None and ("token_s" in measured or "total_s" in measured):
            return InputError(what="output_len", given="nothing", allowed="a number above 0, for token_s and total_s")
        parts = measured.get("prefill_s", 0.0) + ((output_len or 1.0) - 1.0) * measured.get("token_s", 0.0)
        if "total_s" in measured and parts > 1.5 * measured["total_s"]:
            return InputError(
                what="measured.total_s",
                given=measured["total_s"],
                allowed="about prefill_s + (output_len - 1) token_s, all in seconds",
            )
    elif kind in ("serve", "serve-disaggregated", "max-throughput") and output_len is not None and output_len < 2:
        return InputError(what="output_len", given=output_len, allowed="at least 2 tokens")
    return None


def parse_layout(text: str, where: str) -> dict[str, int]:
    """Parts of a layout such as "tp=4,ep=4"; none of an empty text.

    Raises:
        InputError: a part is not NAME=N.
    """
    parts: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if not value.isdigit() or int(value) < 1:
            raise InputError(what="--layout", given=part, allowed="PART=N, such as tp=4", where=where)
        parts[key.replace("-", "_")] = int(value)
    return parts

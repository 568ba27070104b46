"""One quantity that varies in a what-if or a sweep: its values, and what sets each of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from rackline.errors import InputError, require
from rackline.late import late
from rackline.units import parse_bytes, parse_count, parse_rate

with late:
    from rackline import arch

# short name → key of the catalogue
KEYS = {
    "scale_up_size": "levels.scale_up.size",
    "scale_up_bandwidth": "levels.scale_up.bytes_per_s_each_way",
    "scale_out_bandwidth": "levels.scale_out.bytes_per_s_each_way",
    "hbm_bandwidth": "chip.hbm_bytes_per_s",
    "hbm_capacity": "chip.hbm_bytes",
}
# those whose value has a unit, and how it is read
_UNITS: dict[str, Callable[..., float]] = {
    "scale_up_bandwidth": parse_rate,
    "scale_out_bandwidth": parse_rate,
    "hbm_bandwidth": parse_rate,
    "hbm_capacity": parse_bytes,
}
DERIVED = ("total_over_active", "kv_bytes_per_token")
MOST_VALUES = 32
_NUMBER = re.compile(r"^\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One quantity and its values.

    Args:
        name: as given.
        values: texts with units.
    """

    name: str
    values: tuple[str, ...]


def read_sweep(text: str) -> Sweep:
    """Read NAME=A,B,C or NAME=A:B[:COUNT], the latter in equal ratios.

    Raises:
        InputError: no name, no values, unlike units, too many values.

    >>> read_sweep("hbm_bandwidth=4TB/s:16TB/s:3").values
    ('4TB/s', '8TB/s', '16TB/s')
    >>> read_sweep("scale_up_size=8,72").values
    ('8', '72')
    """
    import numpy as np

    name, equals, given = (part.strip() for part in text.partition("="))
    allowed = "NAME=A,B,C or NAME=FROM:TO:COUNT, such as hbm_bandwidth=4TB/s:20TB/s:6"
    require(name and equals and given, what="--what-if", given=text, allowed=allowed)
    if ":" not in given:
        values = tuple(part.strip() for part in given.split(",") if part.strip())
        require(1 <= len(values) <= MOST_VALUES, what="--what-if", given=text, allowed=f"1 to {MOST_VALUES} values")
        return Sweep(name=name, values=values)
    parts = given.split(":")
    ends = [_NUMBER.match(part) for part in parts[:2]]
    count = parts[2] if len(parts) == 3 else "5"
    first, last = ends[0], ends[-1] if len(ends) == 2 else None
    if first is None or last is None or len(parts) > 3 or not count.strip().isdigit():
        raise InputError(what="--what-if", given=text, allowed=allowed)
    number = int(count)
    low, high = float(first[1]), float(last[1])
    if first[2] != last[2] or not 2 <= number <= MOST_VALUES or not (low > 0 and high > 0):
        raise InputError(
            what="--what-if", given=text, allowed=f"two positive ends in one unit and 2 to {MOST_VALUES} values"
        )
    return Sweep(name=name, values=tuple(f"{value:.6g}{last[2]}" for value in np.geomspace(low, high, number)))


def leading_number(text: str) -> float:
    """The number of a value without its unit.

    >>> leading_number("8TB/s")
    8.0
    """
    found = _NUMBER.match(text)
    return float(found[1]) if found else math.nan


def setting(name: str, value: str, model: arch.AnyModel) -> str:
    """The `--set` text of one value.

    total_over_active changes the number of experts (in eights), kv_bytes_per_token (bf16) the KV heads or the latent.

    Raises:
        InputError: a derived quantity of a model that has none, or a value that no model can have.
    """
    if name not in DERIVED:
        key = KEYS.get(name)
        if name in _UNITS:
            _UNITS[name](value, name=name)  # refuses a number without its unit
        return f"{key or name}={value}"
    if not isinstance(model, arch.Model):
        raise InputError(what="--what-if", given=name, allowed="a model whose layers are known")
    wanted = parse_count(value, name=f"--what-if {name}", minimum=0.0, maximum=1e9)
    return _experts(model, wanted) if name == "total_over_active" else _kv(model, wanted)


def _experts(model: arch.Model, wanted: float) -> str:
    """What sets a ratio of total to active parameters."""
    moe = model.moe()
    if moe is None:
        raise InputError(what="--what-if", given="total_over_active", allowed="a mixture of experts")
    layers = sum(group.count for group in model.layer_groups if group.ffn == moe)
    one = layers * moe.expert_params(model.d_model)
    rest = model.total_params - one * moe.num_experts
    fewest = moe.experts_per_token
    experts = 8 * round((wanted * (rest + one * fewest) - rest) / one / 8)
    require(experts >= fewest, what="--what-if total_over_active", given=wanted, allowed="at least 1")
    return f"architecture.moe.num_experts={experts}"


def _kv(model: arch.Model, wanted: float) -> str:
    """What sets a number of bytes per token in a bf16 cache."""
    kinds = list(model.attention_kinds().values())
    require(len(kinds) == 1, what="--what-if", given="kv_bytes_per_token", allowed="a model with one kind of attention")
    kind = kinds[0]
    per_layer = wanted / 2.0 / model.num_layers
    if kind.kind == "mla":
        rank = round(per_layer - getattr(kind, "qk_rope_head_dim", 0))
        require(rank >= 1, what="--what-if kv_bytes_per_token", given=wanted, allowed="room for the rotary part")
        return f"architecture.attention.kv_lora_rank={rank}"
    each = float(kind.kv_elements_per_token(1)) / kind.num_kv_heads
    options = [n for n in range(1, kind.num_q_heads + 1) if kind.num_q_heads % n == 0]
    heads = min(options, key=lambda n: abs(math.log(n * each / per_layer)))
    return f"architecture.attention.num_kv_heads={heads}"

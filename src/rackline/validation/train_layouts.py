"""The layout of a training case; settings that the source does not state follow from documented rules."""

from __future__ import annotations

from dataclasses import replace

from rackline.arch import LayerGroup, Model
from rackline.catalog import names
from rackline.errors import InputError, LayoutError, nearest_names
from rackline.serving.stack import version_numbers
from rackline.training.runs import RECOMPUTE, TrainLayout
from rackline.training.stack import training_stack
from rackline.validation.cases import Case

_COUNTS = ("tp", "pp", "virtual_pp", "cp", "ep", "expert_tp", "moe_tp", "dp", "fsdp")
SHARDING = {"full-shard": 3, "fsdp": 3, "shard-grad-op": 2, "zero-3": 3, "zero-2": 2, "zero-1": 1, "none": 0}
WIDE_EXPERTS = 16
"""Most experts per layer, each as wide as a dense block, for which tensor parallelism still splits experts."""


def train_stack_name(case: Case, generation: str) -> str:
    """Catalogue name of the training stack of a case, by stack, release and chip generation."""
    name = case.stack.lower().replace(" ", "-").replace("_", "-")
    given = version_numbers(case.stack_version)
    for known in names("training_stacks"):
        for one in training_stack(known).stands_for:
            if one.stack != name or (one.generation is not None and one.generation != generation):
                continue
            if one.before is None or (given and given < version_numbers(one.before)):
                return known
    return name


def train_layout(case: Case, model: Model, *, interleaves: bool = True) -> TrainLayout:
    """The layout of a case.

    A missing virtual_pp is the number of layers or none; a missing micro_batch is 1; an unknown recompute is none
    until memory is counted; a missing expert_tp is tp for few wide experts, else 1; dp follows from the chips.

    Args:
        interleaves: whether a run whose virtual_pp is not stated had one.

    Raises:
        LayoutError: parts contradict each other or do not fit the chips.
    """
    parts: dict[str, int] = {}
    for key, value in case.layout.items():
        if key == "sharding":
            continue
        if key not in _COUNTS:
            near = nearest_names(key, _COUNTS, 1)
            raise LayoutError(what="layout", given=key, allowed=", ".join(_COUNTS), nearest=near[0] if near else None)
        if isinstance(value, str):
            raise LayoutError(what=f"layout.{key}", given=value, allowed="a whole number of at least 1")
        parts[key] = int(value)
    tp, pp, cp = parts.get("tp", 1), parts.get("pp", 1), parts.get("cp", 1)
    if case.num_chips % (tp * pp * cp):
        raise LayoutError(
            what="layout",
            given=f"tp={tp},pp={pp},cp={cp}",
            allowed=f"tp·pp·cp = {tp * pp * cp} to divide num_chips={case.num_chips}",
        )
    dp = case.num_chips // (tp * pp * cp)
    moe = model.moe()
    wide = moe is not None and moe.num_experts <= WIDE_EXPERTS and moe.d_expert >= model.d_model
    virtual_pp = parts.get("virtual_pp", max(1, model.num_layers // pp) if interleaves else 1)
    return TrainLayout(
        tp=tp,
        pp=pp,
        virtual_pp=virtual_pp if pp > 1 else 1,
        cp=cp,
        ep=parts.get("ep", 1) if moe else 1,
        expert_tp=parts.get("expert_tp", parts.get("moe_tp", tp if wide else 1)) if moe else 1,
        dp=dp,
        zero=_zero(case, parts),
        fsdp=parts["fsdp"] if 1 < parts.get("fsdp", 1) < dp else 0,
        micro_batch=int(case.number("micro_batch")) if case.values.get("micro_batch") else 1,
        recompute=_recompute(case),
    )


def _zero(case: Case, parts: dict[str, int]) -> int:
    sharding = case.layout.get("sharding")
    if sharding is None:
        return 3 if parts.get("fsdp", 1) > 1 else 1
    name = str(sharding).lower().replace("_", "-")
    if name not in SHARDING:
        near = nearest_names(name, SHARDING, 1)
        raise LayoutError(
            what="layout.sharding", given=sharding, allowed=", ".join(SHARDING), nearest=near[0] if near else None
        )
    return SHARDING[name]


def _recompute(case: Case) -> str:
    name = case.text("recompute", "unknown").lower()
    if name == "unknown":
        return "none"
    if name not in RECOMPUTE:
        near = nearest_names(name, RECOMPUTE, 1)
        raise InputError(
            what="recompute", given=name, allowed=f"{', '.join(RECOMPUTE)}, unknown", nearest=near[0] if near else None
        )
    return name


def truncated(model: Model, num_layers: int) -> Model:
    """The model with fewer or more layers: a proxy that papers and recipes measure instead of the whole.

    Leading layers are kept; additional layers are like the last one.
    """
    groups: list[LayerGroup] = []
    left = num_layers
    last = len(model.layer_groups) - 1
    for index, group in enumerate(model.layer_groups):
        count = left if index == last else min(group.count, left)
        if count > 0:
            groups.append(replace(group, count=count))
        left -= count
    return replace(model, layer_groups=tuple(groups))

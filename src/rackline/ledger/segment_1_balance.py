"""Segment 1: arithmetic over bandwidth, and the batch that balances them (C18 to C23)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rackline.arch import Model
from rackline.ledger.work import FRONTIER, Finding, Work, ridge, ridges
from rackline.serving import blackboard as bb
from rackline.units import format_count


def c18(it: Work) -> Finding:
    for label, value in ridges(
        it.world, ("h100-sxm:bf16", "h100-sxm:fp8", "b200-sxm:fp4", "gb200:fp4", "h200-sxm:bf16", "mi300x:bf16")
    ):
        it.near(label, value, "times", "ridge")
    raw = it.world.chip("b200-sxm").ridge_point("fp4")
    it.show("raw FLOP per byte of B200 in FP4", raw, "FLOP/B")
    return it.done(f"It counts multiplies per weight read; raw FP4 FLOP per byte of a B200 are {raw:,.0f}.")


def c19(it: Work) -> Finding:
    found = dict(
        ridges(it.world, ("a100-sxm-40gb:bf16", "a100-sxm-80gb:bf16", "h100-sxm:bf16", "b200-sxm:bf16", "gb300:fp4"))
    )
    for label, value in found.items():
        it.near(label, value, "times", "ridge")
    low, high = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
    return it.done(f"It goes from {found[low]:.3g} ({low}) to {found[high]:.3g} ({high}).")


def c20(it: Work) -> Finding:
    value = ridge(it.world.chip("gb200"), "fp4")
    balance = bb.balance_batch(value, it.q("total_over_active"))
    it.near("balanced batch at 8 on GB200 in FP4", balance, "sequences", "balance")
    chip, ratio = it.world.chip("gb200"), it.q("total_over_active")
    active = it.q("active_params")
    compute = bb.compute_s(balance, active, chip.flop_per_s("fp4"))
    it.identity(
        "arithmetic there takes as long as the weights",
        compute,
        bb.weight_fetch_s(ratio * active, 0.5, chip.hbm_bytes_per_s),
        "s",
    )
    return it.done("Both times are equal at that batch; sparsity has to mean total over active parameters.")


def c21(it: Work) -> Finding:
    it.near(
        "300 · 8",
        bb.balance_batch(it.q("ridge"), it.q("num_experts") / it.q("active_experts")),
        "sequences",
        "balance",
        when=f"{it.q('active_experts'):.0f} of {it.q('num_experts'):.0f} experts are active",
    )
    found = "The formula was derived for parameters"
    published = "it is the published model"
    model = it.world.model("deepseek-v3")
    moe = model.moe() if isinstance(model, Model) else None
    if moe is not None:
        over = moe.num_experts / moe.experts_per_token
        it.near("experts in its published shape", moe.num_experts, "", "num_experts", when=published)
        it.near("active ones", moe.experts_per_token, "", "active_experts", when=published)
        it.near("experts over active experts", over, "times", "total_over_active", when=published)
        found = f"The published model activates {moe.experts_per_token} of {moe.num_experts} experts; the formula was"
        found += " derived for parameters"
    ratio = model.total_over_active
    it.near("parameters over active parameters", ratio, "times", "total_over_active", when=published)
    it.show("batch by parameters", bb.balance_batch(it.q("ridge"), ratio), "sequences")
    return it.done(f"{found}, which give {ratio:.3g}.")


def c22(it: Work) -> Finding:
    balance = bb.balance_batch(it.q("ridge"), it.q("total_over_active"))
    within = it.q("low") <= balance <= it.q("high")
    it.true("the balanced batch is two to three thousand", within, when="one stays at balance")
    for label, factor in (("doubled", it.q("double")), ("tripled", it.q("triple"))):
        it.most(label, factor * balance, "sequences", it.q("high"), when=f"it may be {label}")
    return it.done(f"The balanced batch itself is {format_count(balance)}.")


def c23(it: Work) -> Finding:
    chip, model = it.world.chip("gb200"), it.world.model(FRONTIER)
    flop, hbm, kv = chip.flop_per_s("fp4"), chip.hbm_bytes_per_s, model.kv_bytes_per_token()
    star = bb.crossover_context(model.active_params, kv, flop, hbm)
    value = bb.dimensionless_ridge(flop, hbm, 0.5)
    plain = bb.balance_batch(value, model.total_params / model.active_params)
    at_half = bb.balance_batch_with_kv(value, model.total_params, model.active_params, 0.5, star * it.q("half"), kv)
    it.identity("at half of the crossover context it doubles", at_half, 2 * plain, "sequences")
    beyond = bb.balance_batch_with_kv(value, model.total_params, model.active_params, 0.5, 1.0001 * star, kv)
    it.true("at the crossover it has no bound", beyond == float("inf"), by_definition=True)
    return it.done(f"It grows without bound as the context nears the crossover of {format_count(star)} tokens.")


EXAMINATIONS: Mapping[str, Callable[[Work], Finding]] = {
    "C18": c18,
    "C19": c19,
    "C20": c20,
    "C21": c21,
    "C22": c22,
    "C23": c23,
}

"""Segment 5: what training, reinforcement learning and use cost, and how far to over-train (C80 to C95)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rackline.ledger.work import Finding, Work
from rackline.scaling import (
    PhaseMfu,
    Usage,
    chinchilla_tokens,
    compute_optimal_of_params,
    equal_cost_ratio,
    equal_costs,
    frontier,
    lifetime_flop_per_param,
    lifetime_tokens,
    optimal_tokens_of_params,
    overtraining_factor,
    power_sum_minimum,
    train_flop,
)

LAWS = ("chinchilla", "besiroglu")


def exact_tokens(it: Work, law: str, inference_tokens: float) -> float:
    """Pre-training tokens for which the size of the example is the cheapest, use included."""
    return optimal_tokens_of_params(it.world.law(law), it.q("params"), 2.0 * inference_tokens / it.q("relative_mfu"))


def c80(it: Work) -> Finding:
    x = power_sum_minimum(1.0, 1.0, 1.0, 1.0)
    it.near("x and 1/x", x * x, "", "equal")
    law = it.world.law("besiroglu")
    alpha, beta = law.params_exponent, law.tokens_exponent
    it.near("the two terms of a loss law at equal FLOP", alpha / beta, "", "equal")
    for name in LAWS:
        trained = exact_tokens(it, name, it.q("inference_tokens"))
        use = 2.0 * it.q("inference_tokens") / it.q("relative_mfu")
        it.near(f"use over training at the optimum, {name}", use / (6.0 * trained), "", "equal")
    return it.done(
        "At the minimum the parts are as the exponents; at fixed loss more tokens shrink a model only slowly, so use "
        "may cost up to three times the training.",
        only_if="both costs change with similar powers",
    )


def c81(it: Work) -> Finding:
    it.near("FLOP per parameter and token", train_flop(1.0, 1.0), "", "flop")
    it.same("forward and backward", it.q("forward") + it.q("backward"), train_flop(1.0, 1.0))
    return it.done("A product forward is two FLOP, its two gradients are four; attention comes on top (C05).")


def c82(it: Work) -> Finding:
    mfu = PhaseMfu(pretrain=1.0, rl=it.q("relative_mfu"), inference=1.0)
    for k in (it.q("least"), it.q("most")):
        ours = lifetime_flop_per_param(Usage(rl_tokens=it.q("tokens"), rl_flop_per_param_token=k), mfu)
        it.same(f"k = {k:.0f}, FLOP per parameter", ours, k * it.q("tokens") / it.q("relative_mfu"), "FLOP")
    return it.done("Inefficiency is the MFU of pre-training over that of the phase.")


def c83(it: Work) -> Finding:
    mfu = PhaseMfu(pretrain=1.0, rl=1.0, inference=it.q("relative_mfu"))
    ours = lifetime_flop_per_param(Usage(inference_tokens=it.q("tokens")), mfu)
    it.near("FLOP per parameter and token", ours / it.q("tokens") * it.q("relative_mfu"), "", "flop")
    return it.done("A forward pass is one product; reading prompts runs at the MFU of training instead.")


def c84(it: Work) -> Finding:
    equal = equal_costs(it.q("inference_tokens"))
    it.show("pre-training tokens with a third each", float(equal.pretrain_tokens), "tokens")
    alternative = float(equal.pretrain_tokens) * it.q("train_share") / it.q("use_share")
    it.near("with 25, 25, 50 over a third each", alternative / float(equal.pretrain_tokens), "times", "small_factor")
    return it.done("For the same use the two rules differ by a factor of two in tokens.")


def c85(it: Work) -> Finding:
    m = it.q("relative_mfu")
    tokens = equal_costs(it.q("inference_tokens"), it.q("rl_flop"), m, m)
    alpha, beta = equal_cost_ratio(it.q("rl_flop"), m), equal_cost_ratio(2.0, m)
    it.same("α · D_RL", alpha * float(tokens.rl_tokens), float(tokens.pretrain_tokens), "tokens")
    it.same("β · D_inf", beta * float(tokens.inference_tokens), float(tokens.pretrain_tokens), "tokens")
    return it.done("The size is a factor of all three costs and cancels.")


def c86(it: Work) -> Finding:
    m = it.q("relative_mfu")
    it.near("β at 30 %", equal_cost_ratio(2.0, m), "", "beta")
    for name in ("k_low", "k_mid", "k_high"):
        it.near(f"α at 30 %, k = {it.q(name):.0f}", equal_cost_ratio(it.q(name), m), "", "alpha")
    it.show("2/6 multiplied, as taken back", equal_cost_ratio(2.0, 1.0 / m), "")
    it.show("4/6 multiplied, as taken back", equal_cost_ratio(4.0, 1.0 / m), "")
    return it.done(
        "Dividing by the MFU is right; 1.5 and 1 are the values at a third with k = 3.",
        only_if="a quarter of the rollouts are trained on (k near 3)",
    )


def c87(it: Work) -> Finding:
    for label, m in (("a third", it.q("third")), ("30 %", it.q("relative_mfu"))):
        tokens = equal_costs(it.q("inference_tokens"), it.q("rl_flop"), m, m)
        it.near(
            f"over reinforcement learning, MFU of {label}",
            float(tokens.pretrain_tokens / tokens.rl_tokens),
            "",
            "over_rl",
        )
        it.near(
            f"over use, MFU of {label}", float(tokens.pretrain_tokens / tokens.inference_tokens), "", "over_inference"
        )
    return it.done("These are the ratios of equal costs; the exact optimum of a loss law differs from them (C89).")


def c88(it: Work) -> Finding:
    for name in ("k_low", "k_high"):
        it.most(
            f"D_RL over D_pre, k = {it.q(name):.0f}", 1.0 / equal_cost_ratio(it.q(name), it.q("relative_mfu")), "", 1.0
        )
    it.most("at equal efficiency, k = 2", 1.0 / equal_cost_ratio(it.q("k_low"), 1.0), "", 1.0)
    return it.done(
        "At equal efficiency and k = 2 it would get three times the tokens of pre-training.",
        only_if="reinforcement learning is less efficient, or trained on in full",
    )


def c89(it: Work) -> Finding:
    used = it.q("inference_tokens")
    it.near("pre-training by equal costs", float(equal_costs(used).pretrain_tokens), "tokens", "inference_tokens")
    for name in LAWS:
        it.near(f"exact optimum, {name}", exact_tokens(it, name, used), "tokens", "inference_tokens")
    return it.done(
        "The exact optimum at fixed loss trains on fewer: four fifths by Hoffmann's constants, a third by the refit.",
        only_if="Hoffmann's constants hold, or costs are to be equal by rule",
    )


def c90(it: Work) -> Finding:
    full = lifetime_tokens(it.q("tokens_per_s"), it.q("time_s"))
    derated = lifetime_tokens(it.q("tokens_per_s"), it.q("time_s"), it.q("probability"))
    it.same("expected tokens at an even chance", derated, it.q("probability") * full, "tokens")
    law = it.world.law("besiroglu")
    per_token = 2.0 / it.q("relative_mfu")
    with_it, without = (optimal_tokens_of_params(law, it.q("params"), per_token * tokens) for tokens in (derated, full))
    it.show("pre-training tokens with it over without", with_it / without, "times")
    return it.done("Expected cost is linear in the tokens of use, so their expectation is what counts.")


def c91(it: Work) -> Finding:
    it.near("60 days", lifetime_tokens(it.q("tokens_per_s"), it.q("time_s")), "tokens", "tokens")
    return it.done("The product is right.")


def c92(it: Work) -> Finding:
    it.near("60 days", lifetime_tokens(it.q("tokens_per_s"), it.q("time_s")), "tokens", "tokens")
    return it.done("Exactly it is 259 trillion, rounded down to 200.")


def c93(it: Work) -> Finding:
    for name in LAWS:
        it.near(f"exact optimum, {name}", exact_tokens(it, name, it.q("inference_tokens")), "tokens", "tokens")
    it.show("150 T over 20 tokens per parameter", overtraining_factor(it.q("params"), it.q("tokens")), "times")
    return it.done("The rumour lies between the optima of the two fits.")


def c94(it: Work) -> Finding:
    params = it.q("params")
    it.near("20 per parameter", chinchilla_tokens(params), "tokens", "tokens")
    for name in ("chinchilla-1", "chinchilla-2"):
        it.near(name, float(frontier(name).at_params(params).tokens), "tokens", "tokens")
    for name in LAWS:
        it.near(
            f"{name}, parametric",
            float(compute_optimal_of_params(it.world.law(name), params).tokens),
            "tokens",
            "tokens",
        )
    return it.done(
        "Two of Hoffmann's approaches and the refit give about 20 tokens, the rounded fit five times that.",
        only_if="not Hoffmann's rounded parametric fit is used",
    )


def c95(it: Work) -> Finding:
    params = it.q("params")
    for label, name in (("200 T", "tokens"), ("259 T", "unrounded_tokens"), ("150 T", "rumour_tokens")):
        it.near(label, overtraining_factor(params, it.q(name)), "times", "factor")
    for law in LAWS:
        trained = exact_tokens(it, law, it.q("unrounded_tokens"))
        it.near(f"exact optimum, {law}", overtraining_factor(params, trained), "times", "factor")
    hoffmann, refit = (overtraining_factor(params, exact_tokens(it, law, it.q("unrounded_tokens"))) for law in LAWS)
    return it.done(
        f"A hundred follows from rounding; the least exact cost is at {hoffmann:.0f} by Hoffmann's constants and at "
        f"{refit:.0f} by the refit.",
        only_if="tokens of use set those of training one to one, or Hoffmann's constants hold",
    )


EXAMINATIONS: Mapping[str, Callable[[Work], Finding]] = {
    "C80": c80,
    "C81": c81,
    "C82": c82,
    "C83": c83,
    "C84": c84,
    "C85": c85,
    "C86": c86,
    "C87": c87,
    "C88": c88,
    "C89": c89,
    "C90": c90,
    "C91": c91,
    "C92": c92,
    "C93": c93,
    "C94": c94,
    "C95": c95,
}

"""Segment 5: what training, reinforcement learning and use cost, how far to over-train (C80 to C95); its scene."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rackline.bands.defaults import default_engine, numbers_of
from rackline.display.axes import DAY
from rackline.ledger.drawings import line_drawing, spread
from rackline.ledger.scenes import Scene, work
from rackline.ledger.work import Finding, Work, World
from rackline.parallel import Layout, precision
from rackline.passes import calibration
from rackline.posttraining.job import AnswerLengths, RlJob
from rackline.posttraining.plan import Schedule, given_step, run_of
from rackline.scaling import (
    PhaseMfu,
    Usage,
    chinchilla_tokens,
    compute_optimal_of_params,
    equal_cost_ratio,
    equal_costs,
    flop_over_life,
    frontier,
    lifetime_flop_per_param,
    lifetime_tokens,
    loss,
    optimal_tokens_of_params,
    overtraining_factor,
    power_sum_minimum,
    tokens_for_loss,
    train_flop,
)
from rackline.system import System
from rackline.training.runs import TrainLayout
from rackline.units import format_count, format_percent

CLUSTER, CHIPS = "h100-96", 64
_PROMPT_LEN, _LENGTHS = 200.0, AnswerLengths(mean=2000.0, spread=0.6, longest=8000.0)
_GENERATIONS = 16
_ENGINES, _TRAINING = Layout(tp=4, dp=16), TrainLayout(tp=8, pp=2, dp=4, micro_batch=1, recompute="full")


def grpo_job(world: World, name: str, answers: int) -> RlJob:
    """A step of GRPO: 16 answers a prompt, 2,000 tokens on average and 8,000 at most.

    Args:
        world: with the model and the cluster.
        name: of the policy.
        answers: of a step [count].

    Raises:
        InputError: a model whose layers are not known.
    """
    model, rack = world.model(name), world.cluster(CLUSTER).with_num_chips(CHIPS)
    numbers = calibration(numbers_of(default_engine(model, rack), rack.chip), rack.chip)
    return RlJob.of(
        System.of(model, rack, calibration=numbers, precisions=[precision("bf16", model, rack.chip)]),
        prompts=answers // _GENERATIONS,
        generations=_GENERATIONS,
        prompt_len=_PROMPT_LEN,
        lengths=_LENGTHS,
    )


def rollout_efficiency(world: World, name: str, answers: int) -> float:
    """FLOP/s of rollouts, 2 · N a generated token, over those of updates, 6 · N a token [1]; see `grpo_job`."""
    step = given_step(grpo_job(world, name, answers), Schedule(), _ENGINES, _TRAINING)
    generating = 2.0 * _LENGTHS.mean / step.rollout.seconds
    return generating / (6.0 * (_PROMPT_LEN + _LENGTHS.mean) / step.updates.train_s)


def rl_flop(world: World, name: str, answers: int, shares: Sequence[float]) -> tuple[list[float], float]:
    """FLOP of a generated token for each active parameter, by the share of the answers that is trained on, and how
    much the whole step falls behind its updates.

    Args:
        world, name, answers: as in `grpo_job`.
        shares: trained on [1].

    Returns:
        (2 for the rollout, and for a trained token 2 for each of two passes of log-probabilities and 6 for the update
        [FLOP]; MFU of updates over that of a step in which all answers are trained on [1]).
    """
    job = grpo_job(world, name, answers)
    step = given_step(job, Schedule(), _ENGINES, _TRAINING)
    counted = [run_of(replace(job, trained=round(share * answers)), step, 1.0).flop_per_param_token for share in shares]
    peak = CHIPS * job.cluster.chip.flop_per_s(job.training.precision.compute)
    updated = (
        6.0 * float(job.model.active_params) * job.trained_answers * job.sequence_len / step.updates.train_s / peak
    )
    return counted, updated / run_of(job, step, 1.0).mfu


LAWS = ("chinchilla", "besiroglu")
POLICY = "llama-3.1-70b"


def exact_tokens(it: Work, law: str, inference_tokens: float) -> float:
    """Pre-training tokens for which the size of the example is the cheapest, use included."""
    return optimal_tokens_of_params(it.world.law(law), it.q("params"), 2.0 * inference_tokens / it.q("relative_mfu"))


def c80(it: Work) -> Finding:
    x, law, used = power_sum_minimum(1.0, 1.0, 1.0, 1.0), it.world.law("besiroglu"), it.q("inference_tokens")
    use = 2.0 * used / it.q("relative_mfu")
    ratios = {name: use / (6.0 * exact_tokens(it, name, used)) for name in LAWS}
    return it.done(
        it.identity("x and 1/x at the minimum of their sum", x * x, 1.0, "times"),
        it.near(
            "the two terms of a loss law at equal FLOP",
            law.params_exponent / law.tokens_exponent,
            "times",
            "equal",
            when="terms of a loss law are weighed at equal FLOP",
        ),
        *(
            it.near(
                f"use over training at the optimum, {name}", ratio, "times", "equal", when=f"the loss law is {name}"
            )
            for name, ratio in ratios.items()
        ),
        because="At the minimum the parts are as the exponents; at fixed loss more tokens shrink a model only slowly: "
        f"use costs {min(ratios.values()):.3g} to {max(ratios.values()):.3g} times the training.",
    )


def c81(it: Work) -> Finding:
    return it.done(
        it.identity("forward and backward", it.q("forward") + it.q("backward"), train_flop(1.0, 1.0), "FLOP"),
        *(
            it.near(
                f"counted in the layers of {model.name}",
                3.0 * float(model.flop_per_token(0.0)) / model.active_params,
                "FLOP",
                "flop",
            )
            for model in (it.world.model(name) for name in ("llama-3.1-70b", "deepseek-v3"))
        ),
        because="A product forward is two FLOP, its two gradients are four; attention comes on top (C05).",
    )


def c82(it: Work) -> Finding:
    tokens, relative_mfu = it.q("tokens"), it.q("relative_mfu")
    mfu = PhaseMfu(pretrain=1.0, rl=relative_mfu, inference=1.0)
    shares = (0.0, it.q("part_trained"), 1.0)
    counted, behind = rl_flop(it.world, POLICY, int(it.q("answers")), shares)
    trained = [
        "no answer is trained on",
        *(f"{format_percent(one)} of the answers are trained on" for one in shares[1:]),
    ]
    return it.done(
        *(
            it.identity(
                f"k = {k:.0f}, FLOP per parameter",
                lifetime_flop_per_param(Usage(rl_tokens=tokens, rl_flop_per_param_token=k), mfu),
                k * tokens / relative_mfu,
                "FLOP",
            )
            for k in (it.q("least"), it.q("most"))
        ),
        *(
            it.most(f"a token of GRPO, {which}", flop, "FLOP", it.q("flop_of_token"), when=which)
            for which, flop in zip(trained, counted, strict=True)
        ),
        it.show("MFU of updates over that of the step", behind, "times"),
        because="Inefficiency is the MFU of pre-training over that of the phase. A step of GRPO takes each trained "
        "token through three more forward passes than the six count: two of log-probabilities and the update's own; "
        f"with all answers and their prompts that is {counted[-1]:.3g} FLOP, at {1.0 / behind:.2g} of the updates' "
        "MFU.",
    )


def c83(it: Work) -> Finding:
    mfu = PhaseMfu(pretrain=1.0, rl=1.0, inference=it.q("relative_mfu"))
    ours = lifetime_flop_per_param(Usage(inference_tokens=it.q("tokens")), mfu)
    forward = ours / it.q("tokens") * it.q("relative_mfu")
    return it.done(
        it.identity("FLOP per parameter and token", forward, it.q("flop"), "FLOP"),
        because="A forward pass is one product; reading prompts runs at the MFU of training instead.",
    )


def c84(it: Work) -> Finding:
    equal = equal_costs(it.q("inference_tokens"))
    alternative = float(equal.pretrain_tokens) * it.q("train_share") / it.q("use_share")
    return it.done(
        it.show("pre-training tokens with a third each", float(equal.pretrain_tokens), "tokens"),
        it.near(
            "with 25, 25, 50 over a third each", alternative / float(equal.pretrain_tokens), "times", "small_factor"
        ),
        because="For the same use the two rules differ by a factor of two in tokens.",
    )


def c85(it: Work) -> Finding:
    m = it.q("relative_mfu")
    tokens = equal_costs(it.q("inference_tokens"), it.q("rl_flop"), m, m)
    alpha, beta = equal_cost_ratio(it.q("rl_flop"), m), equal_cost_ratio(2.0, m)
    return it.done(
        it.identity("α · D_RL", alpha * float(tokens.rl_tokens), float(tokens.pretrain_tokens), "tokens"),
        it.identity("β · D_inf", beta * float(tokens.inference_tokens), float(tokens.pretrain_tokens), "tokens"),
        because="The size is a factor of all three costs and cancels.",
    )


def c86(it: Work) -> Finding:
    m, few, many = it.q("relative_mfu"), int(it.q("few_answers")), int(it.q("many_answers"))
    return it.done(
        it.near("β at 30 %", equal_cost_ratio(2.0, m), "times", "beta"),
        *(
            it.near(f"α at 30 %, k = {k:.0f}", equal_cost_ratio(k, m), "times", "alpha", when=f"k is {k:.0f}")
            for k in (it.q("k_low"), it.q("k_mid"), it.q("k_high"))
        ),
        *(
            it.near(
                f"rollouts over updates, {POLICY}, {answers // CHIPS} answers a chip",
                rollout_efficiency(it.world, POLICY, answers),
                "times",
                "rollout_mfu",
                when=f"a step has {answers // CHIPS} answers a chip",
            )
            for answers in (few, many)
        ),
        it.show("2/6 multiplied, as taken back", equal_cost_ratio(2.0, 1.0 / m), "times"),
        it.show("4/6 multiplied, as taken back", equal_cost_ratio(4.0, 1.0 / m), "times"),
        because="Dividing by the MFU is right; 1.5 and 1 are the values at a third with k = 3, where a quarter of the "
        "rollouts is trained on. A simulated step of GRPO generates at that efficiency with many answers a chip; with "
        "few, the longest ones run nearly alone.",
    )


def c87(it: Work) -> Finding:
    mfus = {"a third": it.q("third"), "30 %": it.q("relative_mfu")}
    costs = {name: equal_costs(it.q("inference_tokens"), it.q("rl_flop"), m, m) for name, m in mfus.items()}
    return it.done(
        *(
            it.near(f"over {phase}, MFU of {name}", float(tokens.pretrain_tokens / of_phase), "times", quoted)
            for name, tokens in costs.items()
            for phase, of_phase, quoted in (
                ("reinforcement learning", tokens.rl_tokens, "over_rl"),
                ("use", tokens.inference_tokens, "over_inference"),
            )
        ),
        because="These are the ratios of equal costs; the exact optimum of a loss law differs from them (C89).",
    )


def c88(it: Work) -> Finding:
    low, equal, relative_mfu = it.q("k_low"), it.q("equal"), it.q("relative_mfu")
    return it.done(
        *(
            it.most(
                f"D_RL over D_pre, k = {k:.0f}, MFU {format_percent(mfu)}",
                1.0 / equal_cost_ratio(k, mfu),
                "times",
                equal,
                when=f"k is {k:.0f} and the MFU {format_percent(mfu)} of that of pre-training",
            )
            for k, mfu in ((low, relative_mfu), (it.q("k_high"), relative_mfu), (low, equal))
        ),
        because=f"At equal efficiency and k = 2 it would get {1.0 / equal_cost_ratio(low, equal):.3g} times the tokens "
        "of pre-training.",
    )


def c89(it: Work) -> Finding:
    used = it.q("inference_tokens")
    equal = float(equal_costs(used).pretrain_tokens)
    optima = {name: exact_tokens(it, name, used) for name in LAWS}
    shares = [f"{format_percent(exact / used)} of the tokens of use by {name}" for name, exact in optima.items()]
    return it.done(
        it.identity("pre-training by equal costs", equal, used, "tokens", when="costs are equal by rule"),
        *(
            it.near(f"exact optimum, {name}", exact, "tokens", "inference_tokens", when=f"the loss law is {name}")
            for name, exact in optima.items()
        ),
        because=f"The exact optimum at fixed loss trains on {' and '.join(shares)}.",
    )


def c90(it: Work) -> Finding:
    full = lifetime_tokens(it.q("tokens_per_s"), it.q("time_s"))
    derated = lifetime_tokens(it.q("tokens_per_s"), it.q("time_s"), it.q("probability"))
    law = it.world.law("besiroglu")
    per_token = 2.0 / it.q("relative_mfu")
    with_it, without = (optimal_tokens_of_params(law, it.q("params"), per_token * tokens) for tokens in (derated, full))
    return it.done(
        it.identity("expected tokens at an even chance", derated, it.q("probability") * full, "tokens"),
        it.show("pre-training tokens with it over without", with_it / without, "times"),
        because="Expected cost is linear in the tokens of use, so their expectation is what counts.",
    )


def c91(it: Work) -> Finding:
    return it.done(
        it.near("60 days", lifetime_tokens(it.q("tokens_per_s"), it.q("time_s")), "tokens", "tokens"),
        because="A product of the two numbers that were named.",
    )


def c92(it: Work) -> Finding:
    made = lifetime_tokens(it.q("tokens_per_s"), it.q("time_s"))
    return it.done(
        it.near("60 days", made, "tokens", "tokens"),
        because=f"Exactly it is {format_count(made)}, for which 200 trillion were said.",
    )


def c93(it: Work) -> Finding:
    used = it.q("inference_tokens")
    equal = float(equal_costs(used).pretrain_tokens)
    optima = {name: exact_tokens(it, name, used) for name in LAWS}
    between = min(optima.values()) <= it.q("tokens") <= max(optima.values())
    return it.done(
        it.near("equal costs", equal, "tokens", "tokens", when="costs are equal by rule"),
        *(
            it.near(f"exact optimum, {name}", tokens, "tokens", "tokens", when=f"the loss law is {name}")
            for name, tokens in optima.items()
        ),
        it.true(
            "150 T between the optima of the laws", between, when="a place between the optima of the laws is enough"
        ),
        it.show("150 T over 20 tokens per parameter", overtraining_factor(it.q("params"), it.q("tokens")), "times"),
        because="The optima are "
        f"{' and '.join(f'{format_count(tokens)} by {name}' for name, tokens in optima.items())}.",
    )


def c94(it: Work) -> Finding:
    params = it.q("params")
    found = {"20 per parameter": chinchilla_tokens(params)}
    found |= {name: float(frontier(name).at_params(params).tokens) for name in ("chinchilla-1", "chinchilla-2")}
    for name in LAWS:
        found[f"{name}, parametric"] = float(compute_optimal_of_params(it.world.law(name), params).tokens)
    low, high = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
    return it.done(
        *(it.near(label, tokens, "tokens", "tokens") for label, tokens in found.items()),
        because=f"Tokens for each parameter go from {found[low] / params:.3g} ({low}) to {found[high] / params:.3g} "
        f"({high}).",
    )


def c95(it: Work) -> Finding:
    params, used = it.q("params"), it.q("unrounded_tokens")
    exact = {law: overtraining_factor(params, exact_tokens(it, law, used)) for law in LAWS}
    return it.done(
        *(
            it.near(label, overtraining_factor(params, it.q(name)), "times", "factor", when=f"{label} are trained on")
            for label, name in (("200 T", "tokens"), ("259 T", "unrounded_tokens"), ("150 T", "rumour_tokens"))
        ),
        *(
            it.near(f"exact optimum, {law}", factor, "times", "factor", when=f"the loss law is {law}")
            for law, factor in exact.items()
        ),
        because="A hundred follows from rounding; the least exact cost is at "
        f"{' and at '.join(f'{factor:.0f} by {law}' for law, factor in exact.items())}.",
    )


def overtraining(world: World) -> Scene:
    """Tokens of a life, ratios of equal costs, and the training that is cheapest over life."""
    fleet, life, equal, exact, chance = (work(world, one) for one in ("C91", "C92", "C87", "C89", "C90"))
    days = spread(DAY, 365.0 * DAY, life.q("time_s"))
    sizes, at = spread(1e9, 1e13, exact.q("params")), exact.q("params")
    law, used = world.law("besiroglu"), exact.q("inference_tokens")
    shares = spread(0.1, 1.0, equal.q("third"), count=61)
    per_param = 2.0 * used / exact.q("relative_mfu")
    best = exact_tokens(exact, "besiroglu", used)
    smaller = spread(at / 3.0, 4.0 * at, count=241)
    tokens_of = np.asarray(tokens_for_loss(law, smaller, loss(law, at, best)))
    fits = (tokens_of > 1e13) & (tokens_of < 1e16)  # elsewhere nobody trains
    order = np.argsort(tokens_of[fits])
    trained, params = tokens_of[fits][order], smaller[fits][order]
    in_all: NDArray[np.float64] = flop_over_life(params, trained, per_param)
    dearer = float(np.interp(used, trained, in_all) / in_all.min())
    chances = np.linspace(0.05, 1.0, 20)
    derated = np.asarray(optimal_tokens_of_params(law, at, per_param * chances))
    rule = {"20 a parameter": chinchilla_tokens(sizes)}
    even = chance.q("probability")
    half = float(optimal_tokens_of_params(law, at, per_param * even)) / best
    return Scene(
        drawings={
            "life": line_drawing(
                "Tokens that are given out",
                f"{format_count(life.q('tokens_per_s'))} tokens a second of one model, "
                f"{format_count(fleet.q('tokens_per_s'))} of a fleet",
                ("time in use", "seconds"),
                ("tokens", "count"),
                days,
                {
                    what: [lifetime_tokens(one.q("tokens_per_s"), float(span)) for span in days]
                    for what, one in (("one model", life), ("a whole fleet", fleet))
                },
            ),
            "optimal": line_drawing(
                "Tokens of training at least FLOP",
                "use left out",
                ("active parameters", "count"),
                ("tokens of training", "count"),
                sizes,
                {**rule, "Besiroglu's law": compute_optimal_of_params(law, sizes).tokens},
            ),
            "over": line_drawing(
                "Tokens of training, with and without use",
                "one model, two months of use",
                ("active parameters", "count"),
                ("tokens of training", "count"),
                sizes,
                {"as many as in use": used, **rule},
            ),
            "ratio": line_drawing(
                "Tokens of pre-training for each token of a phase that costs as much",
                "pre-training takes 6 FLOP a parameter and token",
                ("efficiency of the phase over that of pre-training", "share"),
                ("tokens of pre-training for each", "number"),
                shares,
                {f"{k:g} FLOP a token": equal_cost_ratio(k, shares) for k in (2.0, equal.q("rl_flop"), 6.0)},
                log="y",
            ),
            "cost": line_drawing(
                "FLOP over life at equal quality",
                f"Besiroglu's law; {format_count(used)} tokens of use at a third of the efficiency",
                ("tokens of training", "count"),
                ("FLOP, at the efficiency of training", "power"),
                trained,
                {
                    "in all": in_all,
                    "training": train_flop(params, trained),
                    "use": per_param * params,
                },
            ),
            "chance": line_drawing(
                "Tokens of training by the chance that the model is used",
                f"Besiroglu's law, {format_count(at)} parameters",
                ("chance that the model is shipped", "share"),
                ("tokens over those of a sure use", "share"),
                chances,
                {"tokens": derated / derated[-1], "in proportion": chances},
                log="",
            ),
        },
        facts={
            "rate": format_count(life.q("tokens_per_s")),
            "size": format_count(at),
            "used": format_count(used),
            "rule": format_count(float(chinchilla_tokens(at))),
            "law": format_count(float(compute_optimal_of_params(law, at).tokens)),
            "other": f"{per_param / (6.0 * exact_tokens(exact, 'chinchilla', used)):.3g}",
            "part": format_percent(best / used),
            "dearer": f"{dearer:.3g}",
            "power": f"{math.log(half) / math.log(even):.2g}",
        },
    )

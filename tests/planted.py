"""Runs with planted causes: a server with numbers of its own, a fault, and noise, as a client would see them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from helpers import cluster, model
from rackline.errors import RacklineError
from rackline.parallel import Deployment, parse_layout, precision
from rackline.passes import calibration
from rackline.serving.stack import stack
from rackline.serving.workload import PLAIN, usual_speculation
from rackline.simulation import CacheConfig, Requests
from rackline.validation.causes import Act, Cause, Seen, causes, changed, happens, seen_of
from rackline.validation.observed_fit import PARAMETERS, shipped_numbers, with_numbers
from rackline.validation.requests import ServedRun

SERVERS = (
    ("llama-3.1-8b", "dgx-h100", "tp=1", "native", "vllm", 0, False),
    ("llama-3.1-70b", "dgx-h100", "tp=4", "fp8", "vllm", 0, True),
    ("llama-3.1-70b", "dgx-b200", "tp=8", "native", "sglang", 0, False),
    ("qwen3-235b-a22b", "dgx-h200", "tp=8,moe_tp=8", "fp8", "vllm", 0, False),
    ("gpt-oss-120b", "dgx-b200", "tp=2,moe_tp=2", "native", "vllm", 0, True),
    ("llama-3.1-8b", "dgx-a100", "tp=2", "native", "vllm", 3, False),
)


@dataclass(frozen=True)
class Planted:
    """A run as a client saw it, what is known of its deployment, the faults, and how much slower they made it."""

    run: ServedRun
    seen: Seen
    planted: tuple[str, ...]
    slower: float


def server(rng: np.random.Generator, count: int = 160, *, shared_prompts: bool | None = None) -> ServedRun:
    """A deployment under requests that arrive at 30 to 80 % of what it can serve.

    Args:
        count: requests.
        shared_prompts: only deployments whose prompts share beginnings (simulated without the compiled loop, ten
            times as slowly), or only others; None for both.
    """
    among = [one for one in SERVERS if shared_prompts in (None, one[-1])]
    name, rack, layout, label, engine, drafts, shared = among[rng.integers(len(among))]
    a_model, a_rack = model(name), cluster(rack)
    numbers = calibration(engine, a_rack.chip)
    around = stack(engine).on("", a_rack.chip)
    deployment = Deployment(
        model=a_model,
        cluster=a_rack,
        layout=parse_layout(layout),
        precision=precision(label, a_model, a_rack.chip),
        calibration=around.calibrated(numbers, a_rack.chip.generation, a_model.num_layers),
    )
    prompts = np.exp(rng.normal(math.log(rng.choice([300, 1000, 3000])), 0.6, count)).astype(np.int64) + 16
    answers = np.exp(rng.normal(math.log(rng.choice([100, 250])), 0.5, count)).astype(np.int64) + 4
    empty = Requests(arrival_s=np.zeros(count), input_len=prompts, output_len=answers)
    run = ServedRun(
        requests=empty, measured={}, deployment=deployment, stack=around, cache=CacheConfig(pool_tokens=2_000_000),
        speculation=usual_speculation(drafts) if drafts else PLAIN,
    )  # fmt: skip
    hashes = None
    if shared:  # documents of 40 blocks that every fourth request reads
        own = [[int(v) for v in rng.integers(1 << 40, size=int(n) // 64)] for n in prompts]
        documents = [[int(v) for v in rng.integers(1 << 40, size=40)] for _ in range(4)]
        prompts = prompts + 40 * 64
        hashes = [documents[i % 4] + blocks for i, blocks in enumerate(own)]
        run = replace(run, cache=replace(run.cache, prefix_caching=True, hash_tokens=64))
    total = (
        run.simulated().makespan_s
        if hashes is None
        else replace(run, requests=replace(empty, input_len=prompts, hashes=hashes, hash_tokens=64))
        .simulated()
        .makespan_s
    )
    rate = count / total * rng.uniform(0.3, 0.8)  # of what the server can do at once
    arrivals = np.cumsum(rng.exponential(1.0 / rate, count))
    return replace(run, requests=Requests(arrival_s=arrivals, input_len=prompts, output_len=answers, hashes=hashes,
                                          hash_tokens=64, name="planted"))  # fmt: skip


def with_own_numbers(run: ServedRun, rng: np.random.Generator) -> ServedRun:
    """A server whose numbers lie somewhere in the widths of the calibration."""
    shipped = shipped_numbers(run)
    values: dict[str, float] = {}
    for one in PARAMETERS:
        z = rng.normal()
        values[one.name] = (
            shipped[one.name] * math.exp(z * one.own)
            if one.unit == "1"
            else (max(shipped[one.name] + abs(z) * one.own * 0.5, 0.0))
        )
    return with_numbers(run, values)


def planted(
    rng: np.random.Generator, number: int = 1, least: float = 1.15, *, count: int = 160, shared: bool | None = None
) -> Planted:
    """A run that one or several causes make slower, by at least a factor in the mean request; see `server`."""
    while True:
        run = server(rng, count, shared_prompts=shared)
        own = with_own_numbers(run, rng)
        usual = own.simulated()
        lengths = run.requests.output_len.astype(float)
        before = float(np.nanmean(seen_of(usual).e2e_s(lengths)))
        possible = [cause for cause in causes() if happens(cause, run)]
        chosen: list[Cause] = [possible[i] for i in rng.permutation(len(possible))[:number]]
        made = own
        outside: list[tuple[Act, float]] = []
        each: list[float] = []
        for cause in chosen:
            size = math.exp(rng.uniform(math.log(cause.low), math.log(cause.high)))
            made = changed(made, cause.act, size, usual)
            outside.append((cause.act, size))
            try:
                alone = changed(own, cause.act, size, usual).simulated()
            except RacklineError:
                break
            each.append(float(np.nanmean(seen_of(alone, cause.act, size).e2e_s(lengths))) / before)
        if len(each) < number or (each and min(each) < least):
            continue
        try:
            result = made.simulated()
        except RacklineError:
            continue
        seen = seen_of(result)
        for act, size in outside:
            if act in ("neighbour", "frontend", "client"):
                then = seen_of(result, act, size)
                base = seen_of(result)
                seen = Seen(
                    ttft_s=seen.ttft_s + then.ttft_s - base.ttft_s,
                    tpot_s=seen.tpot_s * then.tpot_s / base.tpot_s,
                    gaps_s=seen.gaps_s * then.gaps_s / base.gaps_s,
                )
        if not (np.isfinite(seen.ttft_s).all() and len(seen.ttft_s) == len(lengths)):
            continue
        count = len(lengths)
        noisy = Seen(
            ttft_s=seen.ttft_s * np.exp(rng.normal(0, 0.1, count)),
            tpot_s=seen.tpot_s * np.exp(rng.normal(0, 0.03, count)),
            gaps_s=seen.gaps_s * np.exp(rng.normal(0, [0.02, 0.05, 0.1])),
        )
        slower = float(np.nanmean(noisy.e2e_s(lengths))) / before
        return Planted(run, noisy, tuple(cause.key for cause in chosen), slower)

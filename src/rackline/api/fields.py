"""Options that several questions share, written once: their help, units and bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from rackline.api.option import MOST_CHIPS, MOST_USD, Option, option, tokens, whole

Sampling = Literal["greedy", "top-p"]
SAMPLINGS: tuple[Sampling, ...] = get_args(Sampling)

MODEL = option(
    "object",
    "catalogue name, Hugging Face id (org/name or org/name@revision), TOML file, or config.json or its folder",
    positional=True,
)
ON = option("object", "cluster: catalogue name or TOML file")
CHIPS = whole("number of chips; the whole cluster by default", maximum=MOST_CHIPS)
PRECISION = option(
    "text", "data types: native, fp32, bf16, fp8, fp4, mxfp4, int8, int4, or by part such as fp8,kv=bf16"
)
CALIBRATION = option(
    "object",
    "calibration of kernel efficiency: auto (of the stacks measured on the chip, the cheapest for the model), trtllm, "
    "vllm, sglang, each also in a version (vllm=0.11.1), generic (all stacks), unit (ideal roofline) or a TOML file; a "
    "cluster from `rackline measure` comes with its own",
)
ROUTING = option(
    "text",
    "how evenly tokens are routed to experts: uniform, balanced, log-normal[=SPREAD] or power-law=EXPONENT, with "
    "+COPIES where experts are rearranged; by default as measured, rearranged where the stack does",
)
SAMPLING = option(
    "text",
    "how tokens are sampled: greedy, or top-p, for which some versions of a stack sort all logits",
    choices=SAMPLINGS,
)
FREE_LAYOUT = option("text", "parallel degrees to fix, such as tp=8; the others are searched")
MEMORY_FRACTION = option("fraction", "fraction of HBM that the server may use", unit="1")
PRICE = option("usd_per_hour", "chip price in USD per hour", unit="USD/h", maximum=MOST_USD)
RENT = option(
    "text",
    "kind of price of a chip-hour: on-demand, reserved-1y, reserved-3y, contract or owned; marked as estimated where "
    "none is published",
    choices=("on-demand", "reserved-1y", "reserved-3y", "contract", "owned"),
)
POWER_CAP = option(
    "watts",
    "power that each chip is set to keep below, such as 500W; its rated power by default",
    unit="W",
    maximum=1e5,
)
PUE = option("count", "power usage effectiveness: site power over IT power", unit="1", minimum=1.0, maximum=10.0)
SET = option(
    "settings",
    "KEY=VALUE overrides a number of the model, cluster or chip, such as hbm_bytes_per_s=20TB/s; may be repeated",
)
MIX = option(
    "text",
    "several lengths at once: a CSV file with the columns share, input, output, or a TOML file with [[requests]] of "
    "these keys; limits, percentiles and memory are those of the mixture",
)
USE = option(
    "text",
    "use case, which sets the lengths and limits that are not given: chat, agents, summarise or batch (no "
    "limits), or a TOML file",
    flag="--for",
)
THINK_TIME = option(
    "seconds",
    "think time: mean pause between an answer and the user's next request, such as 10s",
    unit="s",
    zero=True,
)
TRACE = option("text", "several lengths at once: those of recorded requests, in the formats that `simulate` reads")
CACHE_HIT = option(
    "fraction",
    "prefix cache hit rate: share of prompt tokens already in the KV cache, such as 50%",
    unit="1",
    maximum=0.9999,
    zero=True,
)
FLEET = "Fleet"
TRAFFIC = option(
    "per_second",
    "output tokens to serve, such as 50M/s or 2T/day: prints the replicas, racks, watts and dollars needed",
    unit="token/s",
    maximum=1e15,
    group=FLEET,
)
REQUESTS = option(
    "per_second",
    "the same for requests, such as 50/s, 3k/min or 1M/h",
    unit="request/s",
    maximum=1e12,
    group=FLEET,
)
USERS = whole("the same for interactive users, each of whom waits for an answer or thinks", group=FLEET)
PEAK_OVER_MEAN = option(
    "count",
    "peak-to-mean ratio: traffic of the busiest hour over its mean, such as 1.8",
    unit="1",
    minimum=1.0,
    maximum=1e3,
    group=FLEET,
)


def within(given: dict[str, Option], group: str) -> dict[str, Option]:
    """An option under another heading."""
    return {name: replace(one, group=group) for name, one in given.items()}


INPUT = tokens("prompt tokens per request, such as 4k")
OUTPUT = tokens("output tokens per request, at least 2", minimum=2.0)

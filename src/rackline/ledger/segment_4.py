"""Segment 4: memory per chip, stages, hops, and the bandwidth of a domain (C67 to C78)."""

from __future__ import annotations

import itertools
import math

from rackline.arch import Model
from rackline.hardware import scale_out_path
from rackline.ledger.segment_2 import MODEL
from rackline.ledger.work import HOPPER, RACK, Finding, Work
from rackline.serving import blackboard as bb
from rackline.serving.blackboard import ChipMemory
from rackline.units import format_bytes, format_count, format_seconds


def held(it: Work, stages: float, context_len: float | None = None) -> ChipMemory:
    """What one chip of the example holds."""
    return bb.chip_memory(
        it.q("total_params"),
        1.0,
        it.q("micro_batch"),
        it.q("context_len") if context_len is None else context_len,
        it.q("kv_bytes_per_token"),
        it.q("experts"),
        stages,
    )


def c67(it: Work) -> Finding:
    said = it.q("total_params") + it.q("batch_size") * it.q("context_len") * it.q("kv_bytes_per_token")
    for label, width in (("1 byte a weight", 1.0), ("half a byte", 0.5)):
        memory = bb.chip_memory(
            it.q("total_params"), width, it.q("batch_size"), it.q("context_len"), it.q("kv_bytes_per_token"), 1.0
        )
        it.identity(label, float(memory.total_bytes), said, "B")
    return it.done("Parameters are bytes only at one byte each.", units=True)


def c68(it: Work) -> Finding:
    stages, experts = it.q("stages"), it.q("experts")
    batch = stages * it.q("micro_batch")
    said = (it.q("total_params") + batch * it.q("context_len") * it.q("kv_bytes_per_token")) / (experts * stages)
    it.identity("per chip", float(held(it, stages).total_bytes), said, "B")
    rack = it.world.cluster(RACK)
    it.most("which fits", float(held(it, stages).total_bytes), "B", rack.chip.hbm_bytes)
    return it.done("With the batch of all stages the formula is that of C70.")


def c69(it: Work) -> Finding:
    stages = it.q("stages")
    idle = [bb.ring_step(it.q("pass_s"), stages, m, it.q("micro_batch")).idle_share for m in (stages - 1, stages)]
    it.identity("idle share with one micro-batch fewer", idle[0], 1.0 / stages, "share")
    it.identity("with as many as stages", idle[1], 0.0, "share")
    balance = bb.balance_batch(it.q("ridge"), it.q("total_over_active"))
    it.near("sequences of a micro-batch", balance, "sequences", "train")
    return it.done("As many micro-batches as stages keep every stage at work; with hops one more is needed.")


def c70(it: Work) -> Finding:
    one = held(it, 1.0)
    for stages in (1.0, 2.0, 4.0, it.q("most_stages")):
        memory = held(it, stages)
        it.identity(
            f"weights times stages, P = {stages:.0f}",
            float(memory.weights_bytes) * stages,
            float(one.weights_bytes),
            "B",
        )
        it.identity(f"cache, P = {stages:.0f}", float(memory.kv_bytes), float(one.kv_bytes), "B")
    return it.done(f"The cache stays {format_bytes(float(one.kv_bytes))} a chip at any number of stages.")


def c71(it: Work) -> Finding:
    for name in ("context_len", "short_context"):
        memory, label = held(it, it.q("stages"), it.q(name)), f"{format_count(it.q(name))} tokens"
        share = float(memory.weights_bytes / memory.kv_bytes)
        it.most(f"weights over cache with 2 stages, {label}", share, "times", 1.0, when=f"contexts have {label}")
    return it.done("The cache grows with context and batch, the weights do not.")


def c72(it: Work) -> Finding:
    it.identity(
        "cache per chip with 8 stages over 1",
        float(held(it, it.q("stages")).kv_bytes),
        float(held(it, 1.0).kv_bytes),
        "B",
    )
    return it.done("P times the sequences on 1/P of the layers is exactly one.")


def c73(it: Work) -> Finding:
    deepseek = it.world.model(MODEL).total_params
    for name in (RACK, HOPPER):
        on = it.world.cluster(name)
        room = on.num_chips * on.chip.hbm_bytes
        for label, params in (("DeepSeek V3", deepseek), ("5 T parameters", it.q("large_params"))):
            stages = math.ceil(params * it.q("weight_bytes") / room)
            it.most(f"{label} in FP8 on {name}", stages, "stages", it.q("most_stages"))
    return it.done("Stages are needed only for what does not fit into one domain.")


def c74(it: Work) -> Finding:
    stages, batch = it.q("stages"), it.q("batch_size")
    step = bb.ring_step(it.q("pass_s"), stages, stages, batch, it.q("hop_s"))
    it.near("a token with four hops of 2.5 ms", step.token_s, "s", "token_s")
    found = "A link carries few bytes of a hop for long"
    rack, model = it.world.cluster(RACK), it.world.model(MODEL)
    if rack.scale_out is not None and isinstance(model, Model):
        path, sent = scale_out_path(rack.scale_out), batch * model.d_model * 2.0
        one, all_links = path.seconds(sent), path.seconds(sent / rack.num_chips)
        it.near("2,000 rows of DeepSeek V3 over one link", one, "s", "hop_s", when="a hop uses one link")
        it.near("over the links of all chips", all_links, "s", "hop_s", when="a hop uses the links of all chips")
        found = f"Over all links of a rack a hop takes {format_seconds(all_links)}, over one {format_seconds(one)}"
    return it.done(f"{found}; what is longer than that is software.")


def c75(it: Work) -> Finding:
    few, many = (
        bb.ring_step(it.q("pass_s"), it.q(p), it.q(p), it.q("batch_size"), it.q("hop_s")).hop_s for p in ("low", "high")
    )
    it.near("time between 8 stages over 2", many / few, "times", "growth")
    return it.done("A token needs every stage in turn.")


def c76(it: Work) -> Finding:
    for name, quoted in ((HOPPER, "hopper_s"), (RACK, "blackwell_s")):
        on = it.world.cluster(name)
        it.near(
            name, bb.weight_fetch_s(it.q("total_bytes"), 1.0, on.chip.hbm_bytes_per_s, on.scale_up.size), "s", quoted
        )
    return it.done("All chips of the domain read at once; one token is in one stage at a time.")


def c77(it: Work) -> Finding:
    chips = [it.world.chip(name) for name in ("a100-sxm-80gb", "h100-sxm", "b200-sxm", "gb300")]
    grown: dict[str, float] = {}
    for old, new in itertools.pairwise(chips):
        growth = new.hbm_bytes_per_s / old.hbm_bytes_per_s
        it.show(f"{old.name} to {new.name}", growth, "times")
        grown[new.name] = growth
        it.true(f"{new.name} within 1.5 to 2", it.q("low") <= growth <= it.q("high"))
    hopper, rack = it.world.cluster(HOPPER), it.world.cluster(RACK)
    domain = rack.scale_up.size / hopper.scale_up.size
    it.near("domain, Hopper to Blackwell", domain, "times", "domain")
    whole = rack.scale_up.size * rack.chip.hbm_bytes_per_s / (hopper.scale_up.size * hopper.chip.hbm_bytes_per_s)
    it.show("both together", whole, "times")
    return it.done(
        f"The domain grew {domain:.3g} times and a chip by {min(grown.values()):.2g} to {max(grown.values()):.2g}; "
        f"together {whole:.3g} times from Hopper to Blackwell."
    )


def c78(it: Work) -> Finding:
    params = it.world.model(MODEL).total_params
    times: list[float] = []
    for name in (HOPPER, RACK):
        on = it.world.cluster(name)
        times.append(
            it.show(
                f"DeepSeek V3 in FP8 on {name}",
                bb.weight_fetch_s(params, 1.0, on.chip.hbm_bytes_per_s, on.scale_up.size),
                "s",
            )
        )
    it.least("eight Hoppers over a rack", times[0] / times[1], "times", it.q("slower"))
    return it.done(
        f"Its floor is {format_seconds(times[0])} on eight Hoppers, for any number of such boxes, and "
        f"{format_seconds(times[1])} on a rack."
    )

"""Answers of 300 random deployments against those of the same with one thing changed: more of it never hurts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

from helpers import deploy, layouts
from rackline.errors import RacklineError
from rackline.hardware import Cluster
from rackline.parallel import Deployment
from rackline.passes import Batch
from rackline.serving.curve import batch_curve

MODELS = (
    "llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "qwen3-235b-a22b", "gpt-oss-120b", "deepseek-v3", "kimi-k2",
    "mixtral-8x7b", "gemma-3-27b",
)  # fmt: skip
CLUSTERS = ("dgx-h100", "dgx-h200", "dgx-b200", "gb200-nvl72", "dgx-a100", "l40s-8", "mi300x-8", "h800-144")
CALIBRATIONS = ("generic", "unit", "vllm", "sglang", "trtllm")
COUNT, PARTS = 300, 10
ALMOST = 1.0 + 1e-9


def drawn(part: int) -> Iterator[tuple[str, Deployment, Batch]]:
    """A tenth of the deployments, each with a batch of decodes, of prompts, or of both."""
    rng = Random(f"metamorphic {part}")
    found = 0
    while found < COUNT // PARTS:
        name, on, numbers = rng.choice(MODELS), rng.choice(CLUSTERS), rng.choice(CALIBRATIONS)
        label = rng.choice(["native", "bf16", "fp8"])
        try:
            layout = rng.choice(_layouts(name))
            made = deploy(name, layout, on=on, label=label, calibration=numbers)
        except RacklineError:  # data types that the chip does not have, a domain that is too small
            continue
        found += 1
        ranks = float(layout.attention_dp)
        decodes, prompts = rng.choice([(rng.randint(1, 300), 0), (0, 1), (rng.randint(1, 100), rng.randint(1, 3))])
        chunk = float(rng.choice([128, 1000, 4096])) if prompts else 0.0
        batch = Batch(
            decode_sequences=float(decodes), context_len=float(rng.randint(1, 30_000)),
            prefill_sequences=float(prompts),
            chunk_tokens=chunk, prefix_tokens=0.0, group_tokens=(decodes + prompts * chunk) * ranks,
        )  # fmt: skip
        yield f"{name} {layout} on {on}, {label}, {numbers}, {batch}", made, batch


@cache
def _layouts(name: str) -> tuple[Any, ...]:
    return layouts(name, 8)


def seconds(made: Deployment, batch: Batch) -> float:
    """Of a pass [s]."""
    return float(made.table().seconds(batch))


def on(made: Deployment, cluster: Cluster) -> Deployment:
    """The same on another cluster; the calibration stays."""
    return replace(made, cluster=cluster)


def with_chip(made: Deployment, **values: Any) -> Deployment:
    """The same on a chip with other numbers."""
    return on(made, replace(made.cluster, chip=replace(made.cluster.chip, **values)))


@pytest.mark.parametrize("part", range(PARTS))
def test_more_of_anything_never_hurts(part: int) -> None:
    for words, made, batch in drawn(part):
        chip, levels = made.cluster.chip, made.cluster.levels
        before = seconds(made, batch)
        assert before > 0.0, words
        faster = with_chip(made, hbm_bytes_per_s=2.0 * chip.hbm_bytes_per_s)
        assert seconds(faster, batch) <= before * ALMOST, f"more memory bandwidth: {words}"
        peaks = {key: 2.0 * value for key, value in chip.peak_flop_per_s.items()}
        assert seconds(with_chip(made, peak_flop_per_s=peaks), batch) <= before * ALMOST, f"more FLOP/s: {words}"
        wide = tuple(replace(one, bytes_per_s_each_way=2.0 * one.bytes_per_s_each_way) for one in levels)
        assert seconds(on(made, replace(made.cluster, levels=wide)), batch) <= before * ALMOST, f"links: {words}"
        near = tuple(replace(one, latency_s=0.5 * one.latency_s) for one in levels)
        assert seconds(on(made, replace(made.cluster, levels=near)), batch) <= before * ALMOST, f"latency: {words}"
        load = {"sequences": batch.decode_sequences + 1.0, "context_len": batch.context_len}
        more = with_chip(made, hbm_bytes=2.0 * chip.hbm_bytes).memory(**load).free
        assert more >= made.memory(**load).free + 0.5 * chip.hbm_bytes, f"more memory: {words}"
        size = np.array([max(batch.decode_sequences, 1.0)])
        rents = [replace(made.cluster, usd_per_chip_hour=usd) for usd in (2.0, 3.0)]
        cheap, dear = (batch_curve(on(made, one), batch.context_len, size).usd_per_mtok_output for one in rents)
        assert float(cheap[0]) > 0.0, words
        assert float(dear[0]) == pytest.approx(1.5 * float(cheap[0])), f"more rent: {words}"


@pytest.mark.parametrize("part", range(PARTS))
def test_more_work_never_takes_less(part: int) -> None:
    for words, made, batch in drawn(part):
        table = made.table()
        before = float(table.seconds(batch))
        ranks = float(made.layout.attention_dp)
        longer = replace(batch, context_len=2.0 * batch.context_len)
        assert float(table.seconds(longer)) >= before / ALMOST, f"twice the context: {words}"
        tokens = 2.0 * batch.decode_sequences + batch.prefill_sequences * batch.chunk_tokens
        fuller = replace(batch, decode_sequences=2.0 * batch.decode_sequences, group_tokens=tokens * ranks)
        assert float(table.seconds(fuller)) >= before / ALMOST, f"twice the sequences: {words}"
        if batch.prefill_sequences:
            tokens = batch.decode_sequences + 2.0 * batch.prefill_sequences * batch.chunk_tokens
            more = replace(batch, chunk_tokens=2.0 * batch.chunk_tokens, group_tokens=tokens * ranks)
            assert float(table.seconds(more)) >= before / ALMOST, f"twice the prompt: {words}"

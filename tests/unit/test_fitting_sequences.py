"""How many requests fit has one answer, whoever asks."""

from __future__ import annotations

import numpy as np
import pytest

import rackline as rl
from helpers import cluster, model, system, types
from rackline.errors import InputError
from rackline.parallel import Deployment, Layout, LayoutGrid, enumerate_layouts
from rackline.passes import calibration
from rackline.pricing.costs import TokenCosts
from rackline.search.space import Space
from rackline.serving.capacity import capacity
from rackline.serving.stack import stack
from rackline.serving.workload import Workload
from rackline.simulation import CacheConfig, pool_of
from rackline.system import System

ON = ("dgx-h100", "dgx-h200", "gb200-nvl72", "mi355x-8", "tpu-v6e-256", "dgx-a100", "l40s-8")
MODELS = (
    ("llama-3.1-70b", "bf16"),
    ("llama-3.1-8b", "fp8"),
    ("gpt-oss-120b", "native"),  # windows in half of the layers
    ("deepseek-v3", "native"),  # one latent a token
    ("phi-mini-moe", "bf16"),  # windows in all layers
    ("qwen3-235b-a22b", "fp8"),
)
CONTEXTS = (100, 2047, 70001)


def deployments() -> list[tuple[System, Layout]]:
    """Every layout of a node, thinned."""
    found: list[tuple[System, Layout]] = []
    for on in ON:
        for name, label in MODELS:
            try:
                serves = system(name, on=on, label=label, calibration="auto", routing=rl.Routing())
            except rl.RacklineError:
                continue
            layouts = [x for x in enumerate_layouts(model(name), 8) if x.dp == 1]
            found.extend(
                (serves.with_chips(layout.chips_per_replica), layout)
                for layout in layouts[:: max(len(layouts) // 2, 1)]
            )
    return found


def answers(serves: System, layout: Layout, context: int) -> dict[str, int]:
    """Requests of this length on one replica, by who is asked."""
    d, of = serves.deployment(layout), serves.stack
    slots = layout.attention_dp * layout.pp
    server = serves.server()
    work = Workload(input_len=context - 2, output_len=2)
    (row,) = capacity(d.model, d.cluster, d.precision, context_len=context, server=server, layouts=[layout]).rows
    most = row.max_concurrency
    explained = most
    if most and float(d.memory(sequences=most, context_len=context, server=server).free) < 0:
        explained = -1
    if float(d.memory(sequences=most + slots, context_len=context, server=server).free) >= 0:
        explained = -2
    around = range(max(most // slots - 1, 0), most // slots + 3)
    space = Space(
        system=serves,
        workload=work,
        grid=LayoutGrid.of([layout]),
        modes=[of.scheduler.mode()],
        batches=np.array(around, dtype=float),
    )
    free = space.free_bytes(d.precision, float(of.scheduler.max_batched_tokens))[0]
    planned = max((n for n, left in zip(around, free, strict=True) if left >= 0), default=0) * slots
    try:
        spec = pool_of(d, of, cache=CacheConfig(longest=context)).spec
        each = (-(-context // spec.block_size) if spec.grows else 0) + -(-spec.fixed_tokens // spec.block_size)
        simulated = spec.pool_tokens // spec.block_size // each * slots
    except InputError:
        simulated = 0
    costs = TokenCosts.of(serves, layout)
    return {
        "fit": most,
        "explain": explained,
        "plan": planned,
        "simulate": simulated,
        "price": int(costs.batches_that_fit(context)[0]) * slots,
        "closed loop": d.max_sequences(context_len=context, server=server),
    }


def test_all_five_agree_to_the_request() -> None:
    asked = deployments()
    assert len(asked) > 60
    counts = [answers(serves, layout, context) for serves, layout in asked for context in CONTEXTS]
    assert [one for one in counts if len(set(one.values())) > 1] == []
    assert sum(one["fit"] > 0 for one in counts) > len(counts) / 2
    assert sum(one["fit"] == 0 for one in counts) > 20


def test_llama_70b_in_bf16_fits_on_two_h100() -> None:
    """131.4 GiB of weights on chips of 79.2 GiB: published recipes serve it so."""
    place = cluster("dgx-h100").with_num_chips(2)
    server = system("llama-3.1-70b", on="dgx-h100", calibration="auto").with_chips(2).server()
    found = capacity(model("llama-3.1-70b"), place, types("bf16", "llama-3.1-70b", "dgx-h100"), server=server)
    assert found.fitting
    assert found.fitting[0].layout.tp == 2


def test_a_4090_holds_as_many_tokens_as_vllm_said() -> None:
    """41,408 tokens in vLLM's line of this server, whose limit was 2,048 tokens per pass and 256 sequences."""
    on = cluster("rtx-4090-8").with_num_chips(1)
    found, types_ = model("llama-3.1-8b"), types("bf16", "llama-3.1-8b", "rtx-4090-8")
    vllm = stack("vllm", version="0.19.0", chip=on.chip)
    assert (vllm.scheduler.max_batched_tokens, vllm.scheduler.max_num_seqs) == (2048, 256)
    d = Deployment(
        model=found, cluster=on, layout=rl.Layout(), precision=types_, calibration=calibration("vllm", on.chip)
    )
    tokens = pool_of(d, vllm).spec.pool_tokens
    assert tokens == pytest.approx(41408, rel=0.05)
    (row,) = capacity(found, on, types_, context_len=1024.0, server=vllm.server_memory(), layouts=[rl.Layout()]).rows
    assert row.max_concurrency == tokens // 1024

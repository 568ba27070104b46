"""Fine-tuning: adapters on some products, weights kept in four bits, samples packed into a sequence."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rackline import arch
from rackline.errors import PrecisionError
from rackline.hardware import chip, cluster
from rackline.passes.fallback import calibration
from rackline.search.train_space import timed_steps, whole_batch
from rackline.training.flop import attention_flop, model_flop
from rackline.training.memory import train_memory
from rackline.training.runs import Runs, TrainLayout
from rackline.training.stack import BEFORE_HOPPER, train_precision, training_stack, with_frozen
from rackline.training.system import MicroBatch, TrainingSystem

CHIPS = replace(cluster("dgx-h100"), num_chips=8)
RUNS = Runs.of([TrainLayout(tp=8, micro_batch=1, zero=1)])


def job(**changes: object) -> TrainingSystem:
    model = arch.model("llama-3.1-70b")
    assert isinstance(model, arch.Model)
    plain = TrainingSystem.of(model, CHIPS, stack="megatron-bridge", global_batch_sequences=32, seq_len=4096)
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_adapters_on_fewer_products_are_smaller_and_faster() -> None:
    whole = job(lora_rank=16)
    fewer = [replace(whole, lora_targets=name) for name in ("all", "attention", "qkv")]
    steps = [float(timed_steps(one, RUNS).step[0]) for one in fewer]
    states = [float(train_memory(MicroBatch(system=one, runs=RUNS)).optimizer[0]) for one in fewer]
    assert steps[0] > steps[1] > steps[2]
    assert states[0] > states[1] > states[2] > 0


def test_weights_in_four_bits_take_a_quarter_and_are_written_out_in_each_pass() -> None:
    lora = job(lora_rank=16)
    qlora = replace(lora, precision=with_frozen(lora.precision, "nf4"))
    held = [float(train_memory(MicroBatch(system=one, runs=RUNS)).weights[0]) for one in (lora, qlora)]
    assert 0.25 < held[1] / held[0] < 0.36  # 0.516 of 2 bytes, the head and one layer whole
    more = float(timed_steps(qlora, RUNS).step[0]) - float(timed_steps(lora, RUNS).step[0])
    # each of 32 micro-batches reads 0.516 and writes 2 bytes of a chip's share twice
    layers = 70.55e9 - 2 * 128256 * 8192
    moved = 32 * 2 * layers / 8 * (4.127 / 8 + 2.0) / CHIPS.chip.hbm_bytes_per_s
    assert more == pytest.approx(moved / 0.75, rel=0.1)  # small kernels reach three quarters of the rate of memory
    with pytest.raises(PrecisionError, match="nf4"):
        with_frozen(lora.precision, "int3")
    with pytest.raises(PrecisionError, match="bf16"):
        with_frozen(train_precision("fp8", CHIPS.chip), "nf4")


def test_packed_samples_cut_attention_only() -> None:
    whole, packed = job(), job(packed_len=200.0)
    times = [timed_steps(one, RUNS) for one in (whole, packed)]
    for kind in ("gemm", "elementwise", "tensor"):
        assert np.allclose(times[0].shown[kind], times[1].shown[kind])
    share = float(times[1].shown["attention"][0] / times[0].shown["attention"][0])
    assert 0.01 < share < 0.3
    model = whole.model
    less = float(model_flop(model, 4096, 1.0)) - float(model_flop(model, 4096, 1.0, packed_len=200.0))
    assert less == pytest.approx(3.0 * (attention_flop(model, 4096) - attention_flop(model, 200.0) * 4096 / 200))


def test_attention_before_hopper_is_the_same_kernel_under_every_stack() -> None:
    stacks = [training_stack(name) for name in ("megatron-bridge", "nemo", "llm-foundry")]
    for generation in BEFORE_HOPPER:
        assert len({stack.kernels.flash_of(generation) for stack in stacks}) == 1
    assert stacks[0].kernels.flash_of("hopper") == 1.0 < stacks[2].kernels.flash_of("hopper")


def test_flash_attention_2_is_no_faster_on_blackwell_than_on_hopper() -> None:
    """FLOP/s of the forward kernel in a step, what the newest kernels reach over the slowdown: 35 % of the peak on H100
    (arXiv:2407.08608)."""
    stack = training_stack("torch-fsdp-2")
    rates = [
        calibration(stack.kernels.calibration, chip(name)).lookup("attention_prefill", "bf16").eta_compute
        * chip(name).flop_per_s("bf16")
        / stack.kernels.flash_of(generation)
        for name, generation in (("h100-sxm", "hopper"), ("b200-sxm", "blackwell"))
    ]
    assert rates[0] == pytest.approx(0.35 * 989.5e12, rel=0.08)
    assert rates[1] == pytest.approx(rates[0], rel=0.05)
    assert training_stack("megatron-bridge").kernels.flash_of("blackwell") == 1.0


@pytest.mark.parametrize("chips", [24, 100, 1000, 2000, 3072])
def test_a_rounded_batch_shares_as_much_as_possible_with_the_chips(chips: int) -> None:
    exact = 4e6 / 8192
    found = whole_batch(4e6, 8192, chips)
    near = range(math.ceil(exact * 0.94), math.floor(exact * 1.06) + 1)
    assert math.gcd(found, chips) == max(math.gcd(count, chips) for count in near)


def test_frozen_weights_save_the_products_of_their_gradients() -> None:
    """Of 2 FLOP forward, 2 for the gradient of the input and 2 for that of the weight the last go; attention stays."""
    model = arch.model("llama-3.1-8b")
    trained, frozen = (float(model_flop(model, 4096, 3.0, frozen=one)) for one in (False, True))
    assert trained - frozen == pytest.approx(2.0 * 3.0 * model.active_params * 4096, rel=1e-12)
    attention = 3.0 * 3.0 * float(attention_flop(model, 4096))
    assert frozen == pytest.approx(4.0 * 3.0 * model.active_params * 4096 + attention, rel=1e-12)

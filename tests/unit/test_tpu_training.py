"""Training on TPUs: slices and pods, shards inside a slice and copies between slices, products as XLA runs them."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import micro_batch
from rackline import arch
from rackline.errors import LayoutError
from rackline.hardware import cluster
from rackline.passes import calibration
from rackline.search.train_space import train_space
from rackline.training.memory import train_memory
from rackline.training.runs import TrainLayout
from rackline.training.stack import default_training_stack, training_stack
from rackline.training.step import step_parts, step_time
from rackline.training.system import TrainingSystem

TWO_PODS = cluster("tpu-v6e-pods")
MAXTEXT = training_stack("maxtext")


def test_slices_have_axes_of_their_own_and_the_network_between_them() -> None:
    whole = TWO_PODS.with_num_chips(256).in_slices(1)
    assert (whole.scale_up.size, whole.scale_up.torus_axes) == (256, (16, 16))
    small = TWO_PODS.with_num_chips(64).in_slices(2)
    assert (small.scale_up.size, small.scale_up.torus_axes) == (32, (4, 8))
    assert small.scale_out is TWO_PODS.scale_out
    assert cluster("tpu-v5p-pods").with_num_chips(512).in_slices(2).scale_up.torus_axes == (4, 8, 8)


@pytest.mark.parametrize(("chips", "count"), [(512, 1), (64, 3), (64, 0)])
def test_slices_that_cannot_be_are_refused(chips: int, count: int) -> None:
    with pytest.raises(LayoutError, match="at most 256 chips"):
        TWO_PODS.with_num_chips(chips).in_slices(count)
    with pytest.raises(LayoutError, match="no scale-out level"):
        cluster("tpu-v6e-256").in_slices(2)
    with pytest.raises(LayoutError, match="whole parts of a torus"):
        cluster("dgx-h100").in_slices(1)


def test_copies_between_slices_send_gradients_once_instead_of_weights_each_time() -> None:
    model, layouts = arch.model("llama-3.1-70b"), [TrainLayout(dp=512, zero=3, fsdp=fsdp) for fsdp in (256, 0)]
    batch = micro_batch(model, layouts, TWO_PODS, seq_len=8192, stack=MAXTEXT, batch=512)
    parts = step_parts(batch)
    elements = model.total_params / 256
    # half of the gradient leaves a chip of two, and half comes back
    wire = elements / TWO_PODS.scale_out.bytes_per_s_each_way  # type: ignore[union-attr]
    assert parts.copies[0] == pytest.approx(wire / 0.7, rel=0.35)  # links reach 0.6 to 0.8 of their rate
    assert parts.copies[1] == 0.0
    assert parts.shard_gather[0] <= parts.shard_gather[1]
    step = step_time(parts, MAXTEXT)
    exposed = MAXTEXT.communication.data_exposed * MAXTEXT.memory.gradient_bytes
    assert step.data[0] == pytest.approx(exposed * parts.copies[0])
    memory = train_memory(batch)
    assert memory.optimizer[0] == pytest.approx(2.0 * memory.optimizer[1])


def test_a_search_offers_copies_only_to_stacks_that_have_them_and_where_there_are_domains() -> None:
    model = arch.model("llama-3.1-8b")
    one, two = TWO_PODS.with_num_chips(256), TWO_PODS
    kinds: list[set[int]] = []
    weights_whole = MAXTEXT.with_values({"parallelism.hybrid_shards": False})
    for on, stack in ((one, MAXTEXT), (two, MAXTEXT), (two, weights_whole)):
        system = TrainingSystem.of(model, on, stack=stack, global_batch_sequences=1024, seq_len=8192)
        kinds.append(set(np.unique(train_space(system, fixed={"tp": 1, "pp": 1, "cp": 1}).fsdp)))
    assert kinds == [{0}, {0, 256}, {0}]


def test_products_run_as_fast_as_they_were_timed_alone() -> None:
    shares = {
        name: calibration("xla", cluster(on).chip).operations["gemm", "bf16"].eta_compute
        for name, on in (("v5e", "tpu-v5e-256"), ("v6e", "tpu-v6e-256"), ("v7", "tpu-v7-64"))
    }
    flop = 2 * 8192**3
    assert flop / (shares["v5e"] * 197e12) == pytest.approx(6.047e-3 - 82e-6, rel=0.005)
    assert flop / (shares["v6e"] * 918e12) == pytest.approx(1.511e-3, rel=0.005)
    assert flop / (shares["v7"] * 2307e12 / 2) == pytest.approx(1.017e-3, rel=0.025)
    assert ("attention_prefill", "bf16") in calibration("xla", cluster("tpu-v5e-256").chip).operations


def test_a_tpu_trains_under_a_stack_of_its_own() -> None:
    assert default_training_stack("tpu-v5p") == "maxtext"
    assert default_training_stack("hopper") == default_training_stack() == "megatron-bridge"
    system = TrainingSystem.of(arch.model("llama-3.1-8b"), TWO_PODS, global_batch_sequences=512, seq_len=8192)
    assert system.stack.name == "maxtext"


def test_groups_that_shard_divide_the_replicas() -> None:
    """Of all layouts of 8 chips those with whole groups of 4 replicas; else weights would be cut into none."""
    model, on = arch.model("llama-3.1-8b"), cluster("dgx-h100")
    system = TrainingSystem.of(model, on, stack=MAXTEXT, global_batch_sequences=64, seq_len=8192)
    found = train_space(system, fixed={"fsdp": 4})
    assert set(np.unique(found.fsdp)) == {4}
    assert set(np.unique(found.dp)) == {4, 8}

"""Weights from the training layout to the engines, and states to the host and back."""

from __future__ import annotations

from rackline.arch import Model, MoeFfn
from rackline.hardware import Cluster
from rackline.hardware.chip import host_bytes_per_s
from rackline.parallel import Layout, Precision
from rackline.parallel.memory import weight_bytes
from rackline.posttraining.job import RlJob
from rackline.training.runs import TrainLayout


def model_bytes(job: RlJob, precision: Precision) -> float:
    """All weights as the engines hold them [bytes]."""
    return float(sum(weight_bytes(job.model, Layout(), precision).values()))


TENSORS_PER_LAYER = 9
"""Queries, keys, values, output, gate, up, down and two norms of a dense layer."""


def num_tensors(model: Model) -> int:
    """Tensors of a checkpoint, about: those of a layer, three or two for each routed expert, both ends [count]."""
    found = 3
    for group in model.layer_groups:
        found += group.count * TENSORS_PER_LAYER
        if isinstance(group.ffn, MoeFfn):
            found += group.count * group.ffn.num_experts * group.ffn.matrices
    return found


def transfer_s(job: RlJob, train: TrainLayout, *, colocated: bool) -> float:
    """Weights from the layout of training to that of the engines [s].

    Every tensor is put together over the ranks that share it, renamed and taken apart for the engines, so each chip
    receives the whole model once, and the host handles each tensor: over the links of a scale-up domain where a
    training replica lies in one and shares chips with the engines, or all chips do, else over the network.

    Args:
        colocated: whether engines and training share chips.
    """
    cluster = job.cluster
    inside = train.tp * train.pp * max(train.ep * train.expert_tp // train.tp, 1) <= cluster.scale_up.size
    if colocated and inside:
        level = cluster.scale_up
    else:
        level = cluster.scale_out if cluster.scale_out is not None else cluster.scale_up
    if not colocated and _one_domain(cluster):
        level = cluster.scale_up
    wire_s = model_bytes(job, job.serving.precision) / level.bytes_per_s_each_way
    return wire_s + job.overheads.tensor_s * num_tensors(job.model)


def _one_domain(cluster: Cluster) -> bool:
    return cluster.num_chips <= cluster.scale_up.size


def offload_s(job: RlJob, states_bytes: float) -> float:
    """States of training to the host before the rollouts, and back before the updates, where both share chips [s].

    Args:
        states_bytes: weights, gradients, master weights and moments of a chip [bytes].
    """
    return 2.0 * states_bytes / host_bytes_per_s(job.cluster.chip)

"""Collectives: bytes on the busiest link of one chip, one way, and sequential message steps.

Each algorithm is one pure function of the group and the buffer. A buffer of V bytes is what one chip holds
before (all-reduce, all-to-all) or after (all-gather) the operation, as nccl-tests prints its size.
Groups that are larger than the scale-up domain work in levels: inside first, then across, then inside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rackline.passes.features import Array, FloatLike, as_array


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCost:
    """Cost of one call on one chip; arrays broadcast over groups.

    Args:
        scale_up_bytes, scale_out_bytes: per byte of buffer, one way, on the chip's links of that level [bytes/byte].
        scale_up_steps, scale_out_steps: sequential message steps [count].
    """

    algorithm: str
    scale_up_bytes: FloatLike
    scale_out_bytes: FloatLike
    scale_up_steps: FloatLike
    scale_out_steps: FloatLike

    def seconds(
        self,
        buffer_bytes: FloatLike,
        *,
        scale_up_bytes_per_s: float,
        scale_out_bytes_per_s: float = np.inf,
        scale_up_latency_s: float = 0.0,
        scale_out_latency_s: float = 0.0,
    ) -> FloatLike:
        """Time of one call with these link rates (each way) and latencies per step [s]."""
        return (
            self.scale_up_steps * scale_up_latency_s
            + self.scale_out_steps * scale_out_latency_s
            + buffer_bytes * self.scale_up_bytes / scale_up_bytes_per_s
            + buffer_bytes * self.scale_out_bytes / scale_out_bytes_per_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Communicating ranks: `inside` of them per scale-up domain, over `outside` domains.

    Args:
        inside, outside: [count], scalars or arrays of one shape.
        torus_axis: chips along one axis of a torus; None for a switch or full mesh.
        torus_axes: number of axes of the torus that the group spans.
        in_network: whether the switches of the domain reduce and multicast.
    """

    inside: FloatLike
    outside: FloatLike = 1.0
    torus_axis: FloatLike | None = None
    torus_axes: float = 1.0
    in_network: bool = False

    @property
    def size(self) -> FloatLike:
        """All ranks [count]."""
        return self.inside * self.outside


def split_group(size: FloatLike, stride: FloatLike, domain_size: int) -> tuple[Array, Array]:
    """Ranks of a group per scale-up domain, and the number of domains that it spans.

    Args:
        size: ranks of the group [count].
        stride: chips between neighbouring ranks (those of inner dimensions) [count].
        domain_size: chips of a scale-up domain [count].

    Returns:
        (inside, outside), inside * outside >= size when domains fill unevenly.

    >>> [int(x) for x in split_group(16, 1, 8)]
    [8, 2]
    """
    ranks = as_array(size)
    inside = np.clip(np.floor(domain_size / as_array(stride)), 1.0, ranks)
    outside = np.ceil(ranks / inside)
    return ranks / outside, outside


def all_gather(group: Group) -> CollectiveCost:
    """Every chip ends up with the whole buffer: (n - 1)/n of it arrives, in ring steps.

    Levels: across first (each domain gathers its share), then inside.
    """
    inside, outside = as_array(group.inside), as_array(group.outside)
    return CollectiveCost(
        algorithm="ring",
        scale_up_bytes=(inside - 1) / inside,
        scale_out_bytes=(outside - 1) / outside / inside,
        scale_up_steps=inside - 1,
        scale_out_steps=outside - 1,
    )


reduce_scatter = all_gather
"""The reverse of an all-gather: same bytes, same steps."""


def all_reduce_ring(group: Group) -> CollectiveCost:
    """Reduce-scatter and all-gather: 2 (n - 1)/n of the buffer each way, 2 (n - 1) steps.

    If switches reduce, libraries choose the method with fewer bytes, which is the switch from 4 chips on: a chip sends
    each share to the switch that reduces it, receives its own share and multicasts it, (n + 1)/n of the buffer each
    way.

    Sources: NVIDIA, third-generation NVSwitch (2022): 2n sends become n + 1; NCCL issue 1455: 8 chips reduce 273 GB/s
        of buffer each, 5 chips 258, n + 1 over n times that is 308 GB/s for all groups of 4 and more.
    """
    half, inside = all_gather(group), as_array(group.inside)
    up = 2.0 * as_array(half.scale_up_bytes)
    return CollectiveCost(
        algorithm="ring",
        scale_up_bytes=np.minimum(up, (inside + 1.0) / inside) if group.in_network else up,
        scale_out_bytes=2.0 * as_array(half.scale_out_bytes),
        scale_up_steps=2 * as_array(half.scale_up_steps),
        scale_out_steps=2 * as_array(half.scale_out_steps),
    )


def all_reduce_two_shot(group: Group) -> CollectiveCost:
    """The bytes of `all_reduce_ring` with all peers at once: one step to reduce, one to gather (switch or mesh)."""
    return replace(
        all_reduce_ring(group),
        algorithm="two_shot",
        scale_up_steps=2.0 * (as_array(group.inside) > 1),
        scale_out_steps=2.0 * np.log2(as_array(group.outside)),
    )


def all_reduce_one_shot(group: Group) -> CollectiveCost:
    """Every chip sends its whole buffer to every other: (n - 1) buffers each way in one step."""
    inside, outside = as_array(group.inside), as_array(group.outside)
    return CollectiveCost(
        algorithm="one_shot",
        scale_up_bytes=inside - 1,
        scale_out_bytes=(outside - 1) * inside,
        scale_up_steps=1.0 * (inside > 1),
        scale_out_steps=1.0 * (outside > 1),
    )


def all_reduce_tree(group: Group) -> CollectiveCost:
    """Double binary tree, up and down: 2 log2(n) steps, and each byte passes a chip's link twice."""
    inside, outside = as_array(group.inside), as_array(group.outside)
    return CollectiveCost(
        algorithm="tree",
        scale_up_bytes=2.0 * (inside > 1),
        scale_out_bytes=2.0 * (outside > 1) / inside,
        scale_up_steps=2.0 * np.log2(inside),
        scale_out_steps=2.0 * np.log2(outside),
    )


def all_to_all(group: Group) -> CollectiveCost:
    """Every chip sends 1/n of its buffer to each other one: (n - 1)/n of it leaves.

    On a torus a byte passes axis/4 links per axis on average, with all links of the chip in use.
    """
    inside, outside = as_array(group.inside), as_array(group.outside)
    size = inside * outside
    hops = 1.0
    if group.torus_axis is not None:
        hops = np.maximum(1.0, as_array(group.torus_axis) / 4.0 * group.torus_axes)
    return CollectiveCost(
        algorithm="direct",
        scale_up_bytes=(inside - 1) / size * hops,
        scale_out_bytes=(size - inside) / size,
        scale_up_steps=1.0 * (inside > 1),
        scale_out_steps=1.0 * (outside > 1),
    )


def forwarded_all_to_all(group: Group, ranks: FloatLike, domains: FloatLike) -> CollectiveCost:
    """Each token crosses the slow level once per distinct domain and is copied to its ranks inside it.

    Args:
        ranks: distinct ranks that a token goes to [count]; the buffer is one copy of every token of the chip.
        domains: distinct scale-up domains that hold them [count].

    Returns:
        Bytes per byte of the chip's own tokens: domains (1 - 1/D) outside, ranks (1 - 1/n) inside.

    Sources: DeepEP normal kernels, README (NVLink and RDMA forwarding); lecture C47 (share (R - 1)/R crosses).
    """
    inside, outside = as_array(group.inside), as_array(group.outside)
    return CollectiveCost(
        algorithm="forwarded",
        scale_up_bytes=ranks * (inside - 1) / inside,
        scale_out_bytes=domains * (outside - 1) / outside,
        scale_up_steps=1.0 * (inside > 1),
        scale_out_steps=1.0 * (outside > 1),
    )


def scaled_cost(cost: CollectiveCost, factor: FloatLike) -> CollectiveCost:
    """The same steps for `factor` times the bytes."""
    return replace(cost, scale_up_bytes=cost.scale_up_bytes * factor, scale_out_bytes=cost.scale_out_bytes * factor)


def send_recv(*, crosses_domain: FloatLike) -> CollectiveCost:
    """Point to point: the buffer once, over the level that joins the two chips."""
    crosses = as_array(crosses_domain)
    return CollectiveCost(
        algorithm="direct",
        scale_up_bytes=1.0 - crosses,
        scale_out_bytes=crosses,
        scale_up_steps=1.0 - crosses,
        scale_out_steps=crosses,
    )


ALL_REDUCE = (all_reduce_ring, all_reduce_two_shot, all_reduce_one_shot, all_reduce_tree)

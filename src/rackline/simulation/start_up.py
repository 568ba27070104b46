"""How long a replica takes from the decision to start it until it takes requests: machine, image, engine, weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal

Kind = Literal["warm", "cold"]

LOADER_BYTES_PER_S = 1.8e9
"""Rate at which one process of an engine takes weights in: vLLM, Llama-2-7B on an A100, 13.5 GB in 7.5 s (profile in
upb-cn/vllm-startup-profiler, read 2026-11-23; arXiv:2606.07362)."""
ENGINE_S = {"bootstrap": 10.2, "compile": 8.3 + 7.4, "kv_profile": 2.2, "graphs": 2.9, "rest": 8.6}
"""vLLM, Llama-2-7B on an A100, compiled graphs in the cache, captured up to a batch of 512: the parts (same source),
and what is left of the whole start of 43 to 51 s."""
COLD_ENGINE_S = {"bootstrap": 94.0, "compile": 10.0 + 42.0, "graphs": 54.0}
"""vLLM, Llama-3.1-8B on an L40S, nothing in a cache (tensorfuse.io/docs/blogs/reducing_gpu_cold_start, 2025-09, read
2026-11-23)."""
NODE_S = 100.0
"""Until a cloud machine with a GPU is there: 80 to 120 s (tensorfuse.io, lazy loading, 2025-08, read 2026-11-23)."""
IMAGE_S = 510.0
"""Until an image of 10 GB is there: 7 to 10 min (tensorfuse.io/docs/blogs/snapshotter_graphs, read 2026-11-23)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """Parts of a start [s].

    Args:
        node_s, image_s: until machine and image are there; 0 where they are.
        weights_s: until the weights are in memory.
        engine_s: processes, compilation, profile of the memory, capture of graphs.
    """

    json_keys: ClassVar = ("seconds", "node_s", "image_s", "weights_s", "engine_s")

    node_s: float
    image_s: float
    weights_s: float
    engine_s: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.node_s + self.image_s + self.weights_s + self.engine_s


def start_up(kind: Kind, weight_bytes: float, chips: int, hosts: int, link_bytes_per_s: float = inf) -> StartUp:
    """The start of a replica.

    Args:
        kind: "warm" on a machine that has image and compiled graphs, "cold" on a new one.
        weight_bytes: of the replica, read once [bytes].
        chips, hosts: that hold it; each chip has a process that loads its part, each host a link [count].
        link_bytes_per_s: of a host to the weights: its disk or its network [bytes/s].

    >>> round(start_up("warm", 16e9, 1, 1, 7e9).seconds), round(start_up("cold", 16e9, 1, 1, 7e9).seconds)
    (48, 819)
    """
    weights_s = weight_bytes / min(LOADER_BYTES_PER_S * chips, link_bytes_per_s * hosts)
    if kind == "warm":
        return StartUp(node_s=0.0, image_s=0.0, weights_s=weights_s, engine_s=sum(ENGINE_S.values()))
    return StartUp(node_s=NODE_S, image_s=IMAGE_S, weights_s=weights_s, engine_s=sum(COLD_ENGINE_S.values()))

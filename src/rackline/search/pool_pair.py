"""What a search over two pools looks at: a pool, and a pair of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rackline.parallel import Layout, Precision
from rackline.serving.disaggregated import KvTransfer
from rackline.serving.workload import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Replicas that do one thing.

    Args:
        cluster: name of the cluster it is part of.
        layout: of a replica, dp is the number of replicas.
        batch_size: sequences in flight on one replica; 0 for a prefill pool [sequences].
        sequences_per_rank: of one rank and micro-batch [sequences].
        seconds: time per output token of a decode pool, service time of a prompt of a prefill pool [s].
        requests_per_s: that all replicas could serve [requests/s].
        load: share of that which is used.
    """

    cluster: str
    layout: Layout
    precision: Precision
    mode: Mode
    batch_size: int
    sequences_per_rank: int
    seconds: float
    requests_per_s: float
    load: float

    @property
    def num_chips(self) -> int:
        """Chips of all replicas."""
        return self.layout.num_chips

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "cluster": self.cluster,
            "layout": self.layout.as_dict(),
            "num_chips": self.num_chips,
            "precision": self.precision.as_dict(),
            "mode": self.mode.as_dict(),
            "batch_size": self.batch_size,
            "seconds": self.seconds,
            "requests_per_s": self.requests_per_s,
            "load": self.load,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPair:
    """One disaggregated way to serve, with its numbers.

    Args:
        prefill, decode: the pools.
        transfer: of a prompt's KV cache between them.
        tpot_s, ttft_s: means [s].
        requests_per_s: that both pools serve together [requests/s].
        output_tokens_per_s_per_chip: over the chips of both pools [tokens/s].
        usd_per_mtok_output_all_in: all cost over output tokens [USD per million]; chip-hours without a price.
        usd_per_mtok_input, usd_per_mtok_output: cost of the prefill pool over input tokens, of the decode pool over
            output tokens [USD per million].
    """

    prefill: Pool
    decode: Pool
    transfer: KvTransfer
    tpot_s: float
    ttft_s: float
    requests_per_s: float
    output_tokens_per_s_per_chip: float
    usd_per_mtok_output_all_in: float
    usd_per_mtok_input: float
    usd_per_mtok_output: float

    @property
    def num_chips(self) -> int:
        """Chips of both pools."""
        return self.prefill.num_chips + self.decode.num_chips

    @property
    def tokens_per_s_per_user(self) -> float:
        """1 / tpot [tokens/s]."""
        return 1.0 / self.tpot_s

    def as_dict(self) -> dict[str, Any]:
        """Plain data; layout, precision, mode and batch are those of the decode pool, as in an aggregated plan."""
        return {
            "layout": self.decode.layout.as_dict(),
            "precision": self.decode.precision.as_dict(),
            "mode": self.decode.mode.as_dict(),
            "batch_size": self.decode.batch_size,
            "num_chips": self.num_chips,
            "tpot_s": self.tpot_s,
            "ttft_s": self.ttft_s if math.isfinite(self.ttft_s) else None,
            "tokens_per_s_per_user": self.tokens_per_s_per_user,
            "requests_per_s": self.requests_per_s,
            "output_tokens_per_s_per_chip": self.output_tokens_per_s_per_chip,
            "usd_per_mtok_output_all_in": self.usd_per_mtok_output_all_in,
            "usd_per_mtok_input": self.usd_per_mtok_input,
            "usd_per_mtok_output": self.usd_per_mtok_output,
            "prefill_utilisation": self.prefill.load,
            "prefill_pool": self.prefill.as_dict(),
            "decode_pool": self.decode.as_dict(),
            "kv_transfer": {
                "kv_bytes": self.transfer.kv_bytes,
                "level": self.transfer.level,
                "seconds": self.transfer.seconds,
            },
        }

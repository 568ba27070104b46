"""Candidates of a search over two pools: a pool, and a pair of pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rackline.parallel import Layout, Precision
from rackline.search.candidate import Basis
from rackline.serving.disaggregated import KvTransfer
from rackline.serving.workload import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Replicas for one phase, prefill or decode.

    Args:
        cluster: name of the cluster it is part of.
        layout: of a replica, dp is the number of replicas.
        batch_size: sequences in flight on one replica; 0 for a prefill pool [sequences].
        sequences_per_rank: of one rank and micro-batch [sequences].
        seconds: time per output token of a decode pool, service time of a prompt of a prefill pool [s].
        requests_per_s: capacity of all replicas [requests/s].
        load: share of the capacity that is used [1].
    """

    json_keys: ClassVar = (
        "cluster",
        "layout",
        "num_chips",
        "precision",
        "mode",
        "batch_size",
        "seconds",
        "requests_per_s",
        "load",
    )

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPair:
    """One disaggregated deployment, with its numbers.

    Args:
        prefill, decode: the pools.
        transfer: of a prompt's KV cache between them.
        tpot_s, ttft_s: means under random arrivals [s].
        requests_per_s: capacity of both pools together [requests/s].
        billed_chips: that are paid for, whole rented units [count].
        output_tokens_per_s_per_chip: over the chips of both pools [tokens/s].
        usd_per_mtok_output_all_in: all cost over output tokens [USD per million]; chip-hours without a price.
        usd_per_mtok_input, usd_per_mtok_output: cost of the prefill pool over input tokens, of the decode pool over
            output tokens [USD per million].
        ttft_alone_s: time to first token of a single request [s].
        basis: what the numbers rest on.
        caveat: known error of the estimate, and its size; empty if there is none.
    """

    json_keys: ClassVar = (
        "layout=decode.layout",
        "precision=decode.precision",
        "mode=decode.mode",
        "batch_size=decode.batch_size",
        "num_chips",
        "billed_chips",
        "tpot_s",
        "ttft_s",
        "tokens_per_s_per_user",
        "requests_per_s",
        "output_tokens_per_s_per_chip",
        "usd_per_mtok_output_all_in",
        "usd_per_mtok_input",
        "usd_per_mtok_output",
        "prefill_utilisation",
        "basis",
        "caveat",
        "prefill_pool=prefill",
        "decode_pool=decode",
        "kv_transfer=transfer",
    )

    prefill: Pool
    decode: Pool
    transfer: KvTransfer
    tpot_s: float
    ttft_s: float
    requests_per_s: float
    billed_chips: int
    output_tokens_per_s_per_chip: float
    usd_per_mtok_output_all_in: float
    usd_per_mtok_input: float
    usd_per_mtok_output: float
    ttft_alone_s: float = 0.0
    basis: Basis = "open_loop_estimate"
    caveat: str = ""

    @property
    def prefill_utilisation(self) -> float:
        """Load of the prefill pool [1]."""
        return self.prefill.load

    @property
    def num_chips(self) -> int:
        """Chips of both pools."""
        return self.prefill.num_chips + self.decode.num_chips

    @property
    def tokens_per_s_per_user(self) -> float:
        """1 / tpot [tokens/s]."""
        return 1.0 / self.tpot_s

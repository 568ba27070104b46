"""Candidates with their numbers: one engine for prefill and decode, or a pool for each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar, Literal

import numpy as np

from rackline.hardware import Cluster
from rackline.parallel import Layout, Precision
from rackline.parallel.layout import LayoutKind
from rackline.passes.features import FloatLike
from rackline.serving.disaggregated import KvTransfer
from rackline.serving.workload import Mode, Workload

# of numbers: formulas with every slot taken, formulas with random arrivals, or a simulation
Basis = Literal["closed_loop_estimate", "open_loop_estimate", "simulated"]

_STEEP = 5.0  # d ln tpot / d ln rate, about that at 90 % of saturation
MANY_RANKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """The estimated numbers of a deployment, whether one engine prefills and decodes or a pool does each.

    Args:
        tpot_s, ttft_s: mean time per output token, mean time to first token [s].
        requests_per_s: rate of all replicas [requests/s].
        output_tokens_per_s_per_chip: output over the chips in use [tokens/s].
        usd_per_mtok_output_all_in: all cost over output tokens [USD per million]; chip-hours without a price.
        usd_per_mtok_input, usd_per_mtok_output: cost of prompts over input tokens, the rest over output tokens
            [USD per million].
        billed_chips: chips that are paid for, in whole rented units [count].
        basis: closed_loop_estimate: every slot taken all the time; open_loop_estimate: random arrivals.
        caveat: known error of the estimate, and its size; empty if there is none.
    """

    tpot_s: float
    ttft_s: float
    requests_per_s: float
    output_tokens_per_s_per_chip: float
    usd_per_mtok_output_all_in: float
    usd_per_mtok_input: float
    usd_per_mtok_output: float
    billed_chips: int
    basis: Basis
    caveat: str

    @property
    def tokens_per_s_per_user(self) -> float:
        """1 / tpot [tokens/s]."""
        return 1.0 / self.tpot_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Estimated):
    """One engine for prefill and decode; its cost is split by the time that prompts and outputs take.

    Args:
        layout: layout with as many replicas (dp) as fit on the cluster.
        batch_size: sequences in flight on one replica, over all its ranks and micro-batches [sequences].
        sequences_per_rank: sequences of one rank and micro-batch, at least 1 [sequences].
        free_bytes: free memory on the fullest chip [bytes].
    """

    json_keys: ClassVar = (
        "layout",
        "precision",
        "mode",
        "batch_size",
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
        "free_bytes",
        "basis",
        "caveat",
        "prefill_pool=prefill",
        "decode_pool=decode",
        "kv_transfer=transfer",
    )

    prefill: ClassVar[None] = None  # a single engine has no pools
    decode: ClassVar[None] = None
    transfer: ClassVar[None] = None
    shares_contexts: ClassVar[bool] = False
    layout: Layout
    precision: Precision
    mode: Mode
    batch_size: float
    sequences_per_rank: int
    prefill_utilisation: float
    free_bytes: float

    @property
    def num_chips(self) -> int:
        """Chips of all replicas."""
        return self.layout.num_chips

    @property
    def layout_kind(self) -> LayoutKind:
        """What measured servers of its kind have in common with it."""
        return self.layout.kind

    def label(self) -> str:
        """Layout and mode of a replica, in short."""
        engine = f"{replace(self.layout, dp=1).label()} · {self.precision.short()} · {self.mode.label()}"
        return f"{engine} · batch {self.batch_size:.4g}"


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
class PoolPair(Estimated):
    """One disaggregated deployment; prompts cost what the prefill pool does, outputs what the decode pool does.

    Args:
        prefill, decode: the pools.
        transfer: transfer of a prompt's KV cache between them.
        ttft_alone_s: time to first token of a single request [s].
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

    free_bytes: ClassVar[None] = None
    prefill: Pool
    decode: Pool
    transfer: KvTransfer
    ttft_alone_s: float
    basis: Basis = "open_loop_estimate"

    @property
    def prefill_utilisation(self) -> float:
        """Load of the prefill pool [1]."""
        return self.prefill.load

    @property
    def num_chips(self) -> int:
        """Chips of both pools."""
        return self.prefill.num_chips + self.decode.num_chips

    @property
    def layout_kind(self) -> LayoutKind:
        """What measured servers of its kind have in common with it."""
        return "pools"

    @property
    def shares_contexts(self) -> bool:
        """Whether ranks of a pool share contexts, which is not simulated."""
        return self.prefill.layout.cp > 1 or self.decode.layout.cp > 1

    def label(self) -> str:
        """A replica of each pool in short."""
        first, then = (replace(pool.layout, dp=1).label() for pool in (self.prefill, self.decode))
        return f"prefill {first}, decode {then} · {self.decode.precision.short()}"


def open_loop_caveat(
    layout: Layout, steepness: float, workload: Workload | None = None, max_batched_tokens: float = inf
) -> str:
    """Known error of an open-loop estimate against the simulator; empty if there is none.

    Args:
        layout: layout of a replica.
        steepness: growth of the time per output token with the rate, d ln tpot / d ln rate.
        workload: requests, whose lengths may differ; None for equal ones.
        max_batched_tokens: that a pass of one rank may hold [tokens].
    """
    mixture, ranks = None if workload is None else workload.mixture, layout.attention_dp
    more = min(steepness, 99.0)
    known = (
        (steepness > _STEEP, f"near saturation: 1 % more requests take {more:.0f} % more time, to within tens of %"),
        (
            mixture is not None and float(np.max(mixture.input_len)) > max_batched_tokens,
            "prompts of several passes among shorter ones: times up to 40 % low",
        ),
        (mixture is not None and layout.pp > 1, "prompts of unlike lengths in a pipeline: times up to 25 % low"),
        (ranks > 1 and layout.pp > 1, "attention-dp ranks and pipeline stages together: times up to 15 % low"),
        (
            ranks >= MANY_RANKS,
            f"{ranks} attention-dp ranks: time to first token about 10 % low, per output token 5 % low",
        ),
    )
    return next((error for applies, error in known if applies), "")


def price_per_chip_s(cluster: Cluster) -> float:
    """Price of a chip per second [USD/s], or chip-hours per second where the cluster has no price."""
    return (1.0 if cluster.usd_per_chip_hour is None else cluster.usd_per_chip_hour) / 3600.0


def output_rate(workload: Workload, batch_size: FloatLike, tpot_s: FloatLike, hold_s: FloatLike) -> FloatLike:
    """Output of a replica whose slots are always occupied [tokens/s].

    rate = output_len · batch_size / (hold + (output_len - 1) · tpot)

    Args:
        batch_size: number of slots [sequences].
        tpot_s: time per output token [s].
        hold_s: time that a slot is occupied before it decodes [s].

    Assumes: prefill yields the first token of a request.
    """
    return workload.output_len * batch_size / (hold_s + (workload.output_len - 1.0) * tpot_s)

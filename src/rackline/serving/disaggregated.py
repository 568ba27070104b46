"""Disaggregated serving: one pool of replicas only prefills, another only decodes, the KV cache is transferred between
them.

A prefill replica runs full passes of max_batched_tokens new tokens a rank; a decode replica runs passes without
prompts. With n prompt tokens to prefill, B tokens a pass, t the time of such a pass, R ranks and pp stages

    prompts/s of a prefill replica    R · pp · B / (n · t)
    requests/s of a decode replica    sequences / ((output_len - 1) · tpot)
    ttft = constant + s · (1 + rho / 2 · (1 + rho / ((1 - rho) m))) + transfer        s = ceil(n / B) · t

with m prompts served together, at least 1.

The first token is made by the prefill pool; it is counted as seen when the cache has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rackline.arch import AnyModel
from rackline.hardware import FabricLevel
from rackline.parallel import Layout, Precision
from rackline.parallel.memory import kv_bytes_per_sequence
from rackline.passes.features import Array, FloatLike, as_array
from rackline.serving.context import prefill_chunk
from rackline.serving.steady import Engine
from rackline.serving.workload import Workload

MOST_LOAD = 0.95  # of the prefill pool: beyond, waiting grows without bound


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRate:
    """Prefill replicas at full passes; arrays over layouts or scalars.

    Args:
        pass_s: time of a full pass, all pipeline stages [s].
        service_s: time from the start of a prompt to its first token [s].
        prompts_per_s: of one replica [requests/s].
        together: prompts that one replica serves at a time, at least 1 [requests].
    """

    pass_s: Array
    service_s: Array
    prompts_per_s: Array
    together: Array


def prefill_rate(
    engine: Engine,
    workload: Workload,
    max_batched_tokens: int,
    pp: FloatLike,
    *,
    two_batch_overlap: bool = False,
    cp: int = 1,
    replicated: FloatLike = 1.0,
    exchange_seconds: FloatLike = 0.0,
) -> PrefillRate:
    """How fast a replica that only prefills works through prompts.

    Args:
        max_batched_tokens: new tokens of a pass on one rank [tokens].
        pp: pipeline stages, each with a micro-batch in flight [count].
        cp: ranks that share a prompt [count].
        replicated: context ranks beyond the attention-dp ranks, for models without experts [count].
        exchange_seconds: of keys and values between the ranks of a context group, in a pass [s].

    Returns:
        Arrays of shape () or (layouts,).
    """
    new = workload.new_tokens
    batch = prefill_chunk(workload, float(max_batched_tokens), cp)
    times = engine.time_table(two_batch_overlap)
    device = engine.seconds(batch, times, two_batch_overlap=two_batch_overlap)
    device = device + np.reshape(exchange_seconds, (-1, 1) if np.ndim(exchange_seconds) else ())
    pass_s = engine.with_prompts_s(0.0, device)
    ranks = as_array(engine.attention_dp)
    if pass_s.ndim > 1:  # (layouts, 1)
        pass_s, ranks = pass_s[:, 0], ranks[:, 0]
    rate = ranks * replicated * as_array(pp) * max_batched_tokens / (new * pass_s)
    service_s = pass_s * np.ceil(new / (max_batched_tokens * cp))
    return PrefillRate(
        pass_s=pass_s,
        service_s=service_s,
        prompts_per_s=rate,
        together=np.maximum(rate * service_s, 1.0),
    )


def prefill_load(slack_s: FloatLike, service_s: FloatLike, together: FloatLike = 1.0) -> Array:
    """Highest load of a prefill pool whose mean wait stays within `slack_s`: `waiting_s` solved for the load.

    rho = 4 m x / (m + 2 m x + sqrt((m + 2 m x)² - 8 m (m - 1) x)),   x = slack / service

    Args:
        slack_s: time to first token that is left for waiting; negative when there is none [s].
        service_s: time of a prompt's own passes [s].
        together: m, prompts served at a time [requests].

    Returns:
        Load, 0 to MOST_LOAD.

    >>> float(prefill_load(0.5, 1.0)), round(float(prefill_load(waiting_s(0.8, 1.0, 16.0), 1.0, 16.0)), 6)
    (0.5, 0.8)
    """
    x, m = np.maximum(as_array(slack_s), 0.0) / service_s, as_array(together)
    linear = m + 2.0 * m * x
    rho = 4.0 * m * x / (linear + np.sqrt(np.maximum(linear * linear - 8.0 * m * (m - 1.0) * x, 0.0)))
    return np.where(as_array(slack_s) < 0.0, 0.0, np.minimum(rho, MOST_LOAD))


def waiting_s(load: FloatLike, service_s: FloatLike, together: FloatLike = 1.0) -> Array:
    """Mean wait for a pass that serves several prompts at a time [s].

    wait = service · rho / 2 · (1 + rho / ((1 - rho) m)),   for m = 1 the M/D/1 queue

    Args:
        load: rho.
        service_s: time of a prompt's own passes [s].
        together: m, prompts served at a time [requests].

    Assumes: prompts arrive at random; passes that are not full are shorter in proportion.

    Sources: Pollaczek 1930 for m = 1; the second part falls with the spread of arrivals in one pass, 1/m.

    >>> float(waiting_s(0.5, 1.0)), float(waiting_s(0.8, 1.0, 16.0))
    (0.5, 0.5)
    """
    rho = as_array(load)
    return service_s * rho / 2.0 * (1.0 + rho / ((1.0 - rho) * together))


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTransfer:
    """What the KV cache of one prompt costs on the links between the pools.

    Args:
        kv_bytes: one copy of the prompt's cache [bytes].
        level: "scale_up" inside a domain, else "scale_out".
        seconds: latency and the slower of both ends [s].
    """

    kv_bytes: float
    level: str
    seconds: float


def kv_transfer(
    model: AnyModel,
    workload: Workload,
    precision: Precision,
    *,
    prefill_layout: Layout,
    decode_layout: Layout,
    prefill_link: FabricLevel,
    decode_link: FabricLevel,
) -> KvTransfer:
    """Time to move a prompt's KV cache from the chips that made it to those that decode with it.

    Args:
        prefill_link, decode_link: level of each pool over which the cache goes.

    Assumes: the chips of the prefilling rank each send their part, sent when the prompt is done; copies that tensor
        parallelism needs are received again by each chip that decodes.
    """
    whole = float(as_array(kv_bytes_per_sequence(model, Layout(), precision, workload.input_len)))
    sent = whole / (prefill_layout.tp * prefill_layout.pp)
    received = float(as_array(kv_bytes_per_sequence(model, decode_layout, precision, workload.input_len)))
    slower = max(sent / prefill_link.bytes_per_s_each_way, received / decode_link.bytes_per_s_each_way)
    return KvTransfer(
        kv_bytes=whole,
        level=prefill_link.name,
        seconds=slower + max(prefill_link.latency_s, decode_link.latency_s),
    )


def shared_level(prefill_level: FabricLevel, num_chips: int, scale_out: FabricLevel | None) -> FabricLevel:
    """The level that joins two pools of one cluster: its domain when both fit in it, else the network."""
    return prefill_level if num_chips <= prefill_level.size or scale_out is None else scale_out

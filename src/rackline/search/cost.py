"""The share of prefill in the cost of a simulated engine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rackline.serving.steady import steady_state
from rackline.serving.workload import Admission, Mode, Workload
from rackline.simulation import Pool, Result, TableClock
from rackline.simulation.policies import Passes

_ADMISSION: Mapping[Passes, Admission] = {
    "mixed": "chunked",
    "prompts_first": "prefill_first",
    "batch": "decode_first",
}


def prompt_cost_share(result: Result, pool: Pool) -> float:
    """Share of the engine's time that goes to prompts, at the mean number of decoding sequences [1].

    Args:
        result: a run over one pool that does both prefill and decode.
        pool: that pool.

    Returns:
        Share, 0 to 1; 0 where nothing was decoded.

    Raises:
        TypeError: the clock of the pool is not that of a deployment.
    """
    clock = pool.clock
    if not isinstance(clock, TableClock):
        raise TypeError("a pool of a deployment is needed")
    done = result.finished
    if not np.any(done) or not result.busy_s > 0:
        return 0.0
    outputs = float(result.requests.output_len[done].mean())
    workload = Workload(input_len=float(result.requests.input_len[done].mean()), output_len=max(outputs, 2.0))
    decoding = result.sequence_s / result.busy_s / (pool.ranks * pool.micro_batches)
    mode = Mode(
        admission=_ADMISSION[pool.policy.passes],
        max_batched_tokens=pool.spec.max_batched_tokens,
        two_batch_overlap=clock.two_batch_overlap,
    )
    return float(steady_state(clock.engine, workload, mode, max(decoding, 1.0)).prefill_cost_share)

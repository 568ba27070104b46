"""Cost between the batch sizes of a grid, and the share of prefill in the cost of a simulated engine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rackline.passes.features import Array
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


def least_between(cost: Array, tpot_s: Array, batch: Array, after: Array, after_s: Array, limit_s: float) -> Array:
    """Lower bound of the cost between a batch size of the grid and the next, within a limit on the time per output
    token.

    Cost is time over batch size, and time is nearly linear between two batch sizes; where the next batch does not fit
    in memory, the time is taken as constant.

    Args:
        cost, tpot_s, batch: of points that meet the limit, (points,).
        after: the next batch of each; the same where there is none [sequences].
        after_s: its time per output token, infinite where memory does not hold it [s].
        limit_s: infinite without a limit [s].

    Returns:
        (points,), in the unit of `cost`.
    """
    limit_s = min(limit_s, 1e12)
    share = np.where(after_s > tpot_s, (limit_s - tpot_s) / np.where(after_s > tpot_s, after_s - tpot_s, 1.0), 1.0)
    share = np.where(np.isfinite(after_s), np.clip(share, 0.0, 1.0), 1.0)
    most = batch + share * (after - batch)
    slower = np.where(np.isfinite(after_s), np.minimum(np.maximum(after_s, tpot_s), limit_s), tpot_s)
    return cost * np.minimum((batch / tpot_s) * (slower / most), 1.0)

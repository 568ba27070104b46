"""Lower bounds of a deployment: the latency of a single sequence, and the cost of a token's own work."""

from __future__ import annotations

from dataclasses import dataclass

from rackline.parallel import Deployment, Layout
from rackline.parallel.memory import weight_bytes
from rackline.passes import UNIT, Batch
from rackline.serving.workload import Workload

_LARGE_BATCH = 1.0e7  # sequences per rank at which reading the weights costs nothing per token


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """Lower bounds of one deployment, and how far above them it runs.

    Args:
        latency_s: blackboard step of a single sequence, which reads only the experts that it uses [s].
        full_read_s: all weights of a replica over the bandwidth of its chips (lecture C09), the floor of a batch that
            touches every expert [s].
        usd_per_mtok_output: cost of the longer of a token's own compute and KV reads (C11) [USD per million].
        latency_ratio, cost_ratio: prediction over lower bound [ratio].
    """

    latency_s: float
    full_read_s: float
    usd_per_mtok_output: float
    latency_ratio: float
    cost_ratio: float


def floors(
    deployment: Deployment, workload: Workload, tpot_s: float, usd_per_mtok_output: float, usd_per_chip_s: float
) -> Floors:
    """Lower bounds of a deployment, and the ratios of a candidate to them.

    Args:
        tpot_s, usd_per_mtok_output: those of the candidate [s], [USD per million].
        usd_per_chip_s: price of a chip [USD/s].
    """
    whole = sum(float(v) for v in weight_bytes(deployment.model, Layout(), deployment.precision).values())
    chips = deployment.layout.chips_per_replica
    full_read_s = whole / (chips * deployment.cluster.chip.hbm_bytes_per_s)
    table = deployment.table().with_calibration(UNIT)
    alone = Batch(decode_sequences=1.0, context_len=workload.mean_context, group_tokens=1.0)
    latency_s = float(table.seconds(alone))
    ranks = deployment.layout.attention_dp
    step = float(
        table.seconds(
            Batch(
                decode_sequences=_LARGE_BATCH,
                context_len=workload.mean_context,
                group_tokens=_LARGE_BATCH * ranks,
            )
        )
    )
    per_token = step / (_LARGE_BATCH * ranks * deployment.layout.pp)
    usd = per_token * chips * usd_per_chip_s * 1e6
    return Floors(
        latency_s=latency_s,
        full_read_s=full_read_s,
        usd_per_mtok_output=usd,
        latency_ratio=tpot_s / latency_s,
        cost_ratio=usd_per_mtok_output / usd,
    )

"""Power and energy of a way to serve, at its rate: kernels of its requests, idle power of its chips, machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.hardware import Cluster, drawn_w
from rackline.parallel import Deployment, Layout
from rackline.search.choice import Choice, Energy
from rackline.search.disaggregated import without_context
from rackline.search.served import Site
from rackline.serving.closed_loop import engine_of
from rackline.serving.energy import Power, output_joules, power_at, power_of, prompt_joules, request_joules
from rackline.serving.stack import stack_of
from rackline.serving.steady import Engine
from rackline.serving.workload import Workload
from rackline.simulation import Pool, Result, TableClock


def energy_of(choice: Choice, site: Site) -> Energy | None:
    """Power and energy of a choice; None where neither chip nor cluster state any power.

    Args:
        site: model, clusters and kernels.
    """
    first, then = choice.prefill_pool, choice.decode_pool
    if first is None or then is None:
        alone = site.deployment(choice.layout, choice.precision)
        joules = request_joules(_engine(alone), choice.layout, choice.workload, _per_rank(choice, choice.layout))
        decode = power_at(site.cluster, joules, choice.requests_per_s, choice.num_chips)
        return _summed(choice, site.cluster, decode, None)
    # ranks that share contexts take the energy of as many that each hold a part of the sequences
    ranks = without_context(then.layout, site.model)
    decoding = site.deployment(ranks, then.precision)
    prompts = site.deployment(without_context(first.layout, site.model), first.precision, prefill=True)
    share = max(_per_rank(choice, then.layout) / then.layout.cp, 1.0)
    output = output_joules(_engine(decoding), ranks, choice.workload, share)
    prompt = prompt_joules(_engine(prompts), first.layout, choice.workload, float(first.mode.max_batched_tokens))
    return _summed(
        choice,
        site.cluster,
        power_at(site.cluster, output, choice.requests_per_s, then.num_chips),
        power_at(site.prefill_cluster, prompt, choice.requests_per_s, first.num_chips),
    )


def _summed(choice: Choice, cluster: Cluster, decode: Power | None, prefill: Power | None) -> Energy | None:
    waiting = power_of(cluster, float(drawn_w(cluster.chip, 0.0, 1.0)))
    first = choice.prefill_pool
    if decode is None or waiting is None or (first is not None and prefill is None):
        return None
    chips = choice.num_chips - (first.num_chips if first else 0)
    watts = decode.wall_w * chips + waiting.wall_w * (choice.billed_chips - choice.num_chips)
    if first is not None and prefill is not None:
        watts += prefill.wall_w * first.num_chips
    joules = watts / choice.requests_per_s
    return Energy(
        power=decode,
        prefill_power=prefill,
        power_w=watts,
        joules_per_request=joules,
        joules_per_output_token=joules / choice.workload.output_len,
    )


def _engine(deployment: Deployment) -> Engine:
    return engine_of(deployment, stack_of(deployment.calibration, deployment.cluster.chip.hbm_bytes))


def _per_rank(choice: Choice, layout: Layout) -> float:
    """Sequences that decode together on a rank and micro-batch, on average [sequences]."""
    return max(choice.batch_size / (layout.attention_dp * layout.pp), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnergy:
    """Power and energy of a simulated run.

    Args:
        power: of a chip, on average over the run.
        power_w: of all chips with their machines [W].
        joules_per_request: over the requests that ended [J].
        joules_per_output_token: over their output tokens [J].
    """

    json_keys: ClassVar = (
        "chip_w=power.chip_w",
        "wall_w=power.wall_w",
        "basis=power.basis",
        "cap_w=power.cap_w",
        "power_w",
        "joules_per_request",
        "joules_per_output_token",
    )

    power: Power
    power_w: float
    joules_per_request: float
    joules_per_output_token: float


def run_energy(result: Result, pool: Pool, deployment: Deployment, chips: int) -> RunEnergy | None:
    """Power and energy of a run over one pool; None where no request ended or nothing is known of the chips.

    Requests take the energy of the mean request at the mean number that decoded together; idle power is that of the
    whole run.

    Args:
        chips: of all replicas [count].
    """
    clock, done = pool.clock, result.finished
    if not isinstance(clock, TableClock) or not np.any(done) or not result.busy_s > 0 or not result.makespan_s > 0:
        return None
    outputs = float(result.requests.output_len[done].mean())
    work = Workload(input_len=float(result.requests.input_len[done].mean()), output_len=max(outputs, 2.0))
    decoding = max(result.sequence_s / result.busy_s / (pool.ranks * pool.micro_batches), 1.0)
    rate = float(done.sum()) / result.makespan_s
    joules = request_joules(clock.engine, deployment.layout, work, decoding)
    power = power_at(deployment.cluster, joules, rate, chips)
    if power is None:
        return None
    each = power.joules_per_request(chips, rate)
    return RunEnergy(
        power=power,
        power_w=power.wall_w * chips,
        joules_per_request=each,
        joules_per_output_token=each / outputs,
    )

"""Power and energy of a way to serve, at its rate: kernels of its requests, idle power of its chips, machines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rackline.hardware import Cluster, drawn_w
from rackline.parallel import Deployment, Layout
from rackline.search.choice import Choice, Energy
from rackline.search.pools import without_context
from rackline.search.served import Service
from rackline.serving.fleet import Power, output_joules, power_at, power_of, prompt_joules, request_joules
from rackline.serving.workload import Workload
from rackline.simulation import Pool, Result, TableClock


def energy_of(choice: Choice, service: Service) -> Energy | None:
    """Power and energy of a choice; None where neither chip nor cluster state any power.

    Args:
        service: what serves.
    """
    first, then = choice.prefill_pool, choice.decode_pool
    if first is None or then is None:
        alone = service.system.engine(choice.layout, choice.precision)
        joules = request_joules(alone, choice.layout, choice.workload, _per_rank(choice, choice.layout))
        decode = power_at(service.system.cluster, joules, choice.requests_per_s, choice.num_chips)
        return _summed(choice, service.system.cluster, decode, None)
    # ranks that share contexts take the energy of as many that each hold a part of the sequences
    system, ahead = service.system, service.prefill_system
    ranks = without_context(then.layout, system.model)
    decoding = system.engine(ranks, then.precision)
    prompts = ahead.engine(without_context(first.layout, system.model), first.precision)
    share = max(_per_rank(choice, then.layout) / then.layout.cp, 1.0)
    output = output_joules(decoding, ranks, choice.workload, share)
    prompt = prompt_joules(prompts, first.layout, choice.workload, float(first.mode.max_batched_tokens))
    return _summed(
        choice,
        system.cluster,
        power_at(system.cluster, output, choice.requests_per_s, then.num_chips),
        power_at(ahead.cluster, prompt, choice.requests_per_s, first.num_chips),
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


def _per_rank(choice: Choice, layout: Layout) -> float:
    """Sequences that decode together on a rank and micro-batch, on average [sequences]."""
    return max(choice.batch_size / (layout.attention_dp * layout.pp), 1.0)


def run_energy(
    result: Result, pool: Pool, deployment: Deployment, chips: int, front: FrontPool | None = None
) -> Energy | None:
    """Power and energy of a run; None where no request ended or nothing is known of the chips.

    Requests take the energy of the mean request at the mean number that decoded together, and of the mean pass of
    prompts where these have a pool of their own; idle power is that of the whole run.

    Args:
        chips: of the replicas that decode [count].
        front: the prefill pool; None where prompts and outputs share one.
    """
    clock, done = pool.clock, result.finished
    busy_s = result.busy_s - result.prefill_busy_s
    if not isinstance(clock, TableClock) or not np.any(done) or not busy_s > 0 or not result.makespan_s > 0:
        return None
    outputs = float(result.requests.output_len[done].mean())
    inputs = float(result.requests.input_len[done].mean())
    cached = float(result.cached_tokens[done].mean()) / inputs
    work = Workload(input_len=inputs, output_len=max(outputs, 2.0), cache_hit=min(cached, 1.0 - 1.0 / inputs))
    decoding = max(result.sequence_s / busy_s / (pool.ranks * pool.micro_batches), 1.0)
    rate = float(done.sum()) / result.makespan_s
    if front is None:
        joules = request_joules(clock.engine, deployment.layout, work, decoding)
        power = power_at(deployment.cluster, joules, rate, chips)
        prefill = None
    else:
        ahead = front.pool.clock
        if not isinstance(ahead, TableClock):
            return None
        tokens = min(work.new_tokens * float(len(result.requests)) / max(result.prefill_passes, 1), front.most_tokens)
        joules = prompt_joules(ahead.engine, front.deployment.layout, work, tokens)
        prefill = power_at(front.deployment.cluster, joules, rate, front.chips)
        joules = output_joules(clock.engine, deployment.layout, work, decoding)
        power = power_at(deployment.cluster, joules, rate, chips)
        if prefill is None:
            return None
    if power is None:
        return None
    watts = power.wall_w * chips + (prefill.wall_w * front.chips if front is not None and prefill is not None else 0.0)
    return Energy(
        power=power,
        prefill_power=prefill,
        power_w=watts,
        joules_per_request=watts / rate,
        joules_per_output_token=watts / rate / outputs,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPool:
    """A pool of a run that computes prompts only.

    Args:
        deployment: of one replica.
        chips: of all its replicas [count].
    """

    pool: Pool
    deployment: Deployment
    chips: int

    @property
    def most_tokens(self) -> float:
        """Tokens of all ranks of a replica in one pass, at most [tokens]."""
        return float(self.pool.spec.max_batched_tokens)

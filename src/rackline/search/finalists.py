"""The cheapest of each kind, with engines on chips that they leave free, are simulated; the cheapest is the answer.

Beside it stand its power and energy (kernels of its requests, idle power of its chips, machines), and what would be
better if the launch rules of the engine allowed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from rackline.hardware import Cluster, drawn_w
from rackline.parallel import Deployment, Layout, LayoutGrid, Precision
from rackline.search.candidate import Candidate, PoolPair
from rackline.search.choice import TIE, Choice, Energy, Leftover, simplest, simplicity
from rackline.search.launch_rules import Role
from rackline.search.pools import PoolSearch, without_context
from rackline.search.served import Service
from rackline.search.single_engines import EngineSearch, Rejected, with_a_sure_one
from rackline.search.space import PrefillPool, Space, every_layout
from rackline.search.sustained_rate import (
    RESOLVED,
    NoSustainedRate,
    SustainedRate,
    confirmed_rate,
    most_rate,
    sustained_rate,
)
from rackline.serving.fleet import Power, output_joules, power_at, power_of, prompt_joules, request_joules
from rackline.serving.workload import Workload
from rackline.simulation import Pool, Result, TableClock
from rackline.system import Constraints

_COST = attrgetter("usd_with_leftover")  # of a choice


def free_places(cluster: Cluster, choice: Choice) -> tuple[int, int]:
    """Chips that lie free together in a host, and in how many hosts; (0, 0) where all paid chips are in use.

    Example: an engine of 3 chips on hosts of 4 leaves 1 in each; pools of 4 + 3 chips on a host of 8 leave 1.
    """
    left, host = choice.billed_chips - choice.num_chips, cluster.host_chips
    if left < 1:
        return 0, 0
    if choice.serving == "disaggregated":
        together = min(left, host)
        return together, left // together
    size = choice.layout.chips_per_replica
    if size <= host:
        together, places = host % size, choice.layout.dp // (host // size)
    else:
        together, places = -size % host, choice.layout.dp
    return (together, places) if together and places else (left, 1)


def with_leftover(choices: Sequence[Choice], space: Space, limits: Constraints, *, open_loop: bool) -> list[Choice]:
    """Each choice with the cheapest engine on the chips that it leaves free; the cheapest with both, cheapest first.

    Args:
        space: of the plan; layouts that its engine launches are searched, in the precision of the choice.
        open_loop: by which estimate, as of the choices.
    """
    engines: dict[tuple[int, str], Choice | None] = {}  # by chips and precision
    found: list[Choice] = []
    for choice in choices:
        together, places = free_places(space.system.cluster, choice)
        key = (together, choice.precision.label)
        if together and key not in engines:
            engines[key] = _cheapest_on(together, choice.precision, space, limits, open_loop=open_loop)
        engine = engines.get(key)
        if engine is not None:
            choice = replace(choice, leftover=Leftover(choice=engine, places=places))
        found.append(choice)
    return with_a_sure_one(sorted(found, key=_COST))


def _cheapest_on(
    chips: int, precision: Precision, space: Space, limits: Constraints, *, open_loop: bool
) -> Choice | None:
    system = replace(space.system.with_chips(chips), precisions=(precision,))
    own = replace(space, system=system, grid=LayoutGrid.of(every_layout(system))).launchable(pools=False)
    if own.starts_nothing:
        return None
    search = EngineSearch.through(own, limits, open_loop=open_loop)
    return next(iter(search.answer().contenders), None) if search.shortlist.looked_at else None


_OFF = 1.1  # times its simulated cost that an estimate may be too dear by; of two pools, whose waits are known worse
_OFF_POOLS = 1.3
_MOST_AGAIN = 3  # times that choices which lost against a short run are tried again
_DEARER = 0.02  # by which a long run must raise the cost of the best for that
_MOST_CONFIRMED = 3  # choices that get a long run after the first one
_WITH_OTHER_SLOTS = 3  # cheapest deployments that are tried with other numbers of running sequences
_OTHER_SLOTS = (0.5, 0.75, 0.9, 1.5, 3.0)  # times the running sequences: fewer are faster, more leave none waiting


Finalist = tuple[
    Choice | None, str
]  # the best of one kind, simulated or with the reason why not; else why there is none


def serve_kinds(service: Service, kinds: Sequence[Sequence[Choice]]) -> list[Finalist]:
    """Simulate the cheapest of each kind, the cheapest kind first.

    An option is simulated to the end unless it cannot be cheaper than what was: because the rate at which it would
    cost as much is above 95 % of its capacity, or because its limits break there.

    Args:
        service: what all of them share.
        kinds: of single engines and of pools, the cheapest by their estimates, cheapest first; may be empty.
    """
    finalists: list[Finalist] = [(None, "")] * len(kinds)
    costs = [kind[0].usd_with_leftover if kind else float("inf") for kind in kinds]
    leader: Choice | None = None
    for index in sorted(range(len(kinds)), key=lambda place: costs[place]):
        finalists[index] = _best_of_kind(service, kinds[index], leader)
        best = finalists[index][0]
        if best is not None and best.sustained is not None:
            leader = min(filter(None, (leader, best)), key=_COST)
    return finalists


def _best_of_kind(service: Service, choices: Sequence[Choice], leader: Choice | None) -> Finalist:
    """Return the best of one kind; see `serve_kinds`.

    A short run may promise too much. Where the long run then makes the best dearer, the choices that lost against the
    short run are tried again.

    Args:
        leader: the cheapest of the other kinds; None before there is one.
    """
    held, unserved, reason = _held(service, choices, leader)
    if not held:
        return unserved, "" if unserved is not None else reason
    best = _cheapest_confirmed(held, service)
    rest = list(choices)
    for _ in range(_MOST_AGAIN):
        bar = min(choice.usd_with_leftover for choice in held)
        if best.sustained is not None and best.usd_with_leftover <= (1.0 + _DEARER) * bar:
            break
        rest = [choice for choice in rest if all(choice.estimate is not other.estimate for other in held)]
        surely = [choice for choice in (leader, best) if choice is not None and choice.sustained is not None]
        held, _, _ = _held(service, rest, min(surely, key=_COST, default=None))
        if not held:
            break
        best = _best_of([best, _cheapest_confirmed(held, service)])
    return best, ""


def _cheapest_confirmed(held: Sequence[Choice], service: Service) -> Choice:
    """Return the cheapest after long runs, which some short runs promise too much for.

    Args:
        held: choices at the rates of short runs, at least one.
    """
    first = simplest(held, _COST)
    confirmed = [_confirmed(first, service)]
    cheapest = {id(first.estimate): first}  # of each deployment, with whichever slots
    for choice in sorted(held, key=_COST):
        cheapest.setdefault(id(choice.estimate), choice)
    for choice in list(cheapest.values())[1 : 1 + _MOST_CONFIRMED]:
        best = _best_of(confirmed)
        if best.sustained is not None and choice.usd_with_leftover >= (1.0 - RESOLVED) * best.usd_with_leftover:
            break
        confirmed.append(_confirmed(choice, service))
    return _best_of(confirmed)


def _best_of(choices: Sequence[Choice]) -> Choice:
    """Return the cheapest of those that were simulated, the simpler one of a tie; the first where none was."""
    sure = [choice for choice in choices if choice.sustained is not None]
    return simplest(sure, _COST) if sure else choices[0]


def _confirmed(best: Choice, service: Service) -> Choice:
    """Return a choice, and its leftover engine, at rates that long runs confirm; as it is where none was simulated."""
    if best.sustained is None:
        return best
    rate = confirmed_rate(best.estimate, service, best.sustained)
    if isinstance(rate, NoSustainedRate):
        return replace(best, sustained=None, not_simulated=rate.reason)
    best = best.with_sustained_rate(rate)
    leftover = best.leftover
    if leftover is None or leftover.choice.sustained is None:
        return best
    engine = leftover.choice
    on = replace(service, system=service.system.with_chips(engine.num_chips))
    rate = confirmed_rate(engine.estimate, on, leftover.choice.sustained)
    if isinstance(rate, NoSustainedRate):
        return replace(best, leftover=None)
    return replace(best, leftover=replace(leftover, choice=engine.with_sustained_rate(rate)))


def _held(
    service: Service, choices: Sequence[Choice], leader: Choice | None
) -> tuple[list[Choice], Choice | None, str]:
    """Return those that hold their limits in short runs, of all whose estimates may be off by enough to win.

    A simpler deployment wins where it costs at most `TIE` more.

    Args:
        leader: the cheapest of the other kinds that was simulated; None before there is one.

    Returns:
        (the choices, the first that was not simulated to the end, why none holds).
    """
    best, unserved, reason = None, None, ""
    held: list[Choice] = []
    least = float("inf") if leader is None else leader.usd_with_leftover
    for choice in choices:
        off = _OFF_POOLS if choice.serving == "disaggregated" else _OFF
        if (best or unserved) and choice.usd_with_leftover >= (off if best else 1.0 + TIE) * least:
            break
        beaten = best or leader
        near = 1.0 + TIE if beaten and simplicity(choice) < simplicity(beaten) else 1.0 - RESOLVED
        found = sustained_rate(choice.estimate, service, _rate_of(choice, least * near, service))
        if isinstance(found, SustainedRate):
            served = _with_served_leftover(choice.with_sustained_rate(found), service)
            held.append(served)
            best = simplest(held, _COST)
            least = min(least, served.usd_with_leftover)
        elif found.simulated:
            reason = reason or found.reason
        else:
            unserved = unserved or replace(choice, not_simulated=found.reason)
    if best is not None and service.demand.limits.latencies():
        for choice in sorted(held, key=_COST)[:_WITH_OTHER_SLOTS]:
            if choice.usd_with_leftover < _OFF * best.usd_with_leftover:
                held += _with_other_slots(choice, best, service)
    return held, unserved, reason


def _with_other_slots(choice: Choice, best: Choice, service: Service) -> list[Choice]:
    """Return a choice with other caps of running sequences, as far as it is cheaper than the best so far."""
    first = choice.sustained
    if first is None:
        return []
    cheaper: list[Choice] = []
    counts = [first.max_num_seqs + 1, *(int(first.max_num_seqs * share) for share in _OTHER_SLOTS)]
    others = dict.fromkeys(min(max(count, 1), first.most_num_seqs) for count in counts)
    for slots in (count for count in others if count != first.max_num_seqs):
        least = min(map(_COST, (best, *cheaper)))
        rate = _rate_of(choice, (1.0 - RESOLVED) * least, service)
        sustained = sustained_rate(choice.estimate, service, rate, max_num_seqs=slots)
        if isinstance(sustained, SustainedRate):
            cheaper.append(choice.with_sustained_rate(sustained))
    return cheaper


def _rate_of(choice: Choice, usd: float, service: Service) -> float:
    """Rate from which a choice costs less, with the most that its leftover engine may add [requests/s].

    Args:
        usd: cost [USD per million output tokens]; infinite for any rate.
    """
    rate = choice.estimate.usd_per_mtok_output_all_in * choice.estimate.requests_per_s / usd
    if not rate or choice.leftover is None:
        return rate
    engine = choice.leftover.choice
    on = replace(service, system=service.system.with_chips(engine.num_chips))
    return max(rate - choice.leftover.places * most_rate(engine.estimate, on), 0.0)


def _with_served_leftover(choice: Choice, service: Service) -> Choice:
    """The choice with its leftover engine served at its own share of the traffic; without it where no rate holds."""
    if choice.leftover is None:
        return choice
    engine = choice.leftover.choice
    on = replace(service, system=service.system.with_chips(engine.num_chips))
    found = sustained_rate(engine.estimate, on)
    if not isinstance(found, SustainedRate):
        return replace(choice, leftover=None)
    return replace(choice, leftover=replace(choice.leftover, choice=engine.with_sustained_rate(found)))


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
    inputs, outputs, cached = (
        float(tokens[done].mean())
        for tokens in (result.requests.input_len, result.requests.output_len, result.cached_tokens)
    )
    cached /= inputs
    work = Workload(input_len=inputs, output_len=max(outputs, 2.0), cache_hit=min(cached, 1.0 - 1.0 / inputs))
    decoding = max(result.sequence_s / busy_s / (pool.ranks * pool.micro_batches), 1.0)
    rate = float(done.sum()) / result.makespan_s
    of_decode, prefill, ahead_w = (request_joules if front is None else output_joules), None, 0.0
    power = power_at(deployment.cluster, of_decode(clock.engine, deployment.layout, work, decoding), rate, chips)
    if front is not None and isinstance(front.pool.clock, TableClock):
        most_tokens = float(front.pool.spec.max_batched_tokens)  # of all ranks of a replica in one pass
        tokens = min(work.new_tokens * float(len(result.requests)) / max(result.prefill_passes, 1), most_tokens)
        joules = prompt_joules(front.pool.clock.engine, front.deployment.layout, work, tokens)
        prefill = power_at(front.deployment.cluster, joules, rate, front.chips)
        ahead_w = prefill.wall_w * front.chips if prefill else 0.0
    if power is None or (front is not None and prefill is None):
        return None
    watts = power.wall_w * chips + ahead_w
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


_PAIRS = 3  # cheapest pairs among which one is refused by a rule


def better_refused(space: Space, limits: Constraints, best: Choice | None, *, open_loop: bool) -> Rejected | None:
    """The cheapest single engine that the engine's rules alone keep from being the answer; None without one.

    Args:
        space: with the rules, before `Space.launchable`.
        best: the cheapest that is launched; its precision and scheduler are considered, all without it.
        open_loop: by which estimate, as of the best.
    """
    rules = space.rules
    if rules is None:
        return None
    if best is not None:
        space = replace(space.in_precision(best.precision), modes=[best.mode])
    starts = np.logical_or.reduce([space.starting(mode) for mode in space.modes])
    if starts.all():
        return None
    free = replace(space, grid=space.grid.take(np.flatnonzero(~starts)), rules=None)
    if all(mode.two_batch_overlap for mode in free.modes) and not np.any(free.grid.attention_dp > 1):
        return None
    search = EngineSearch.through(free, limits, open_loop=open_loop)
    found = next(iter(search.answer().contenders), None)
    if found is None or not isinstance(found.estimate, Candidate):
        return None
    cost = found.usd_per_mtok_output_all_in
    if best is not None and not cost < best.estimate.usd_per_mtok_output_all_in:
        return None
    asked = space.asked(found.precision, found.mode, layout=found.layout)
    return Rejected(
        what=found.estimate.label(),
        reason=f"launch: {rules.refusal(asked)}",
        excess=0.0 if best is None else best.estimate.usd_per_mtok_output_all_in / cost - 1.0,
        candidate=found.estimate,
    )


def better_refused_pair(
    space: Space, limits: Constraints, prefill: PrefillPool, choices: Sequence[Choice]
) -> Rejected | None:
    """The cheapest pair of pools that the engine's rules alone keep from being the answer; None without one.

    Args:
        space: with the rules, before `Space.launchable`.
        prefill: what the prefill pool may be.
        choices: the cheapest of each kind that is launched; only the precision of the pair among them is searched, all
            without it.
    """
    pairs = [one for one in choices if one.serving == "disaggregated"]
    if pairs:
        space = space.in_precision(pairs[0].precision)
    if space.rules is None or space.in_pools(every=True).all():
        return None
    free = replace(space, rules=None)
    search = PoolSearch.of(free, limits, prefill.space(free))
    for part in free.parts():
        search.look_at(part)
    least = min((one.estimate.usd_per_mtok_output_all_in for one in choices), default=np.inf)
    for found in search.answer(_PAIRS).contenders:
        if not isinstance(found.estimate, PoolPair) or not found.usd_per_mtok_output_all_in < least:
            continue
        why = _pair_refusal(space, found.estimate, prefill)
        if why:
            return Rejected(
                what=found.estimate.label(),
                reason=f"launch: {why}",
                excess=0.0 if not choices else least / found.usd_per_mtok_output_all_in - 1.0,
                candidate=found.estimate,
            )
    return None


def _pair_refusal(space: Space, pair: PoolPair, prefill: PrefillPool) -> str:
    """Which rule keeps a pool from being launched; empty where none does."""
    roles: tuple[Role, Role] = ("prefill", "decode")
    for role, pool, own in zip(roles, (pair.prefill, pair.decode), (prefill.space(space), space), strict=True):
        layout = without_context(pool.layout, own.system.model)
        asked = own.asked(pool.precision, pool.mode, role, pool.layout.cp, layout)
        why = space.rules.refusal(asked) if space.rules else ""
        if why:
            return f"{role} pool: {why}"
    return ""

"""Power and energy of an engine in steady state, and the fleet that some traffic needs, with its racks and price.

A chip draws idle power all the time and the energy of its kernels in each step; it does not exceed its limit. The mean
step of a loop of b sequences on a rank decodes b tokens and carries b / (output_len - 1) prompts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from rackline.errors import require
from rackline.hardware import Cluster, billed_chips, drawn_w, rack_bill, taken_chips, wall_w
from rackline.parallel import Layout
from rackline.passes import Batch
from rackline.passes.features import Array, FloatLike, as_array
from rackline.serving.disaggregated import prefill_chunk
from rackline.serving.open_loop import Population, Response
from rackline.serving.steady import Engine
from rackline.serving.workload import Workload, Workloads

HOURS_PER_MONTH = 730.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Demand for output tokens.

    Args:
        tokens_per_s: mean over a day, interactive and offline together [tokens/s].
        peak_over_mean: interactive traffic of the busiest hour over its mean, at least 1 [ratio].
        offline_share: share that may wait for off-peak hours [1].
        provider_tokens_per_s: total traffic of a provider, for comparison; None for none [tokens/s].

    Raises:
        InputError: traffic is not positive, the ratio is below 1, or the share is outside 0 to 1.
    """

    tokens_per_s: float
    peak_over_mean: float = 1.0
    offline_share: float = 0.0
    provider_tokens_per_s: float | None = None

    def __post_init__(self) -> None:
        require(
            math.isfinite(self.tokens_per_s) and self.tokens_per_s > 0,
            what="traffic",
            given=self.tokens_per_s,
            allowed="more than 0 tokens/s",
        )
        require(
            math.isfinite(self.peak_over_mean) and self.peak_over_mean >= 1,
            what="peak_over_mean",
            given=self.peak_over_mean,
            allowed="at least 1",
            nearest="1",
        )
        require(0.0 <= self.offline_share <= 1.0, what="offline_share", given=self.offline_share, allowed="0 to 1")
        require(
            self.provider_tokens_per_s is None or self.provider_tokens_per_s > 0,
            what="provider_tokens_per_s",
            given=self.provider_tokens_per_s,
            allowed="more than 0",
        )

    @property
    def capacity_tokens_per_s(self) -> float:
        """Rate that the fleet must reach: the interactive peak, or the mean of all traffic if offline work fills the
        rest.

        capacity = max((1 - s) · T · k, T)

        >>> Traffic(tokens_per_s=100.0, peak_over_mean=2.0).capacity_tokens_per_s
        200.0
        >>> Traffic(tokens_per_s=100.0, peak_over_mean=2.0, offline_share=0.5).capacity_tokens_per_s
        100.0
        """
        return max(((1.0 - self.offline_share) * self.tokens_per_s) * self.peak_over_mean, self.tokens_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Equal replicas on one cluster within one copy of the deployment.

    Args:
        replica_chips: chips of one replica, which must be in one rack if they fit [count].
        replicas: replicas in one copy [count].
        beside: whether they are on chips that other parts of the copy take and leave free.
        power: mean power of its chips at full traffic; that of the nameplate where it is None.
    """

    cluster: Cluster
    replica_chips: int
    replicas: int = 1
    beside: bool = False
    power: Power | None = None

    @property
    def num_chips(self) -> int:
        """Chips of all replicas [count]."""
        return self.replica_chips * self.replicas

    @property
    def taken_chips(self) -> float:
        """Chips of hosts that one copy takes from others, with those that hold no further replica [count]."""
        if self.beside:
            return 0.0
        return self.replicas * float(taken_chips(self.cluster, self.replica_chips))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interactive:
    """Users and the fleet that they see.

    Args:
        population: the users.
        users_per_copy: that one copy serves within its limits [count].
        response_s: mean time of a request at this traffic [s].
        waiting_users: that wait for an answer or read it come in, on average [count].
    """

    json_keys: ClassVar = (
        "users=population.users",
        "think_s=population.think_s",
        "users_per_copy",
        "response_s",
        "waiting_users",
    )

    population: Population
    users_per_copy: float
    response_s: float
    waiting_users: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The copies of a deployment that the traffic needs.

    Args:
        copies: copies of the deployment [count].
        copy_tokens_per_s: output of one copy [tokens/s].
        num_chips, num_racks: chips and racks of all copies [count].
        billed_chips: chips that are paid for, in whole rented units [count].
        power_w: power of the site at full traffic, or None; chips that are paid for and left over wait, but where the
            nameplate is all that is known [W].
        tokens_per_joule: output at full traffic over that power, or None [tokens/J].
        racks_per_megawatt: racks that a megawatt of the site supplies, or None [count].
        power_basis: what the power rests on: "kernels", "other generations" or "nameplate"; empty without one.
        usd_per_hour: rent of the chips that are paid for, or None [USD/hour].
        utilisation: mean traffic over the capacity of the copies [1].
        usd_per_mtok_output_all_in: rent, idle hours included, over the mean traffic [USD per million output tokens].
        copy_share: output of one copy over the provider's traffic (lecture C33), or None [1].
        fleet_share: this traffic over the provider's, or None [1].
        requests_per_s: mean traffic as requests; None where lengths are not known [requests/s].
        interactive: the users that the traffic comes from; None where it was given as a rate.
    """

    json_keys: ClassVar = (
        "traffic_tokens_per_s=traffic.tokens_per_s",
        "peak_over_mean=traffic.peak_over_mean",
        "offline_share=traffic.offline_share",
        "capacity_tokens_per_s=traffic.capacity_tokens_per_s",
        "copies",
        "copy_tokens_per_s",
        "num_chips",
        "billed_chips",
        "num_racks",
        "power_w",
        "power_basis",
        "tokens_per_joule",
        "racks_per_megawatt",
        "usd_per_hour",
        "usd_per_month",
        "usd_per_request",
        "usd_per_user",
        "utilisation",
        "usd_per_mtok_output_all_in",
        "copy_share",
        "fleet_share",
        "requests_per_s",
        "interactive",
    )

    traffic: Traffic
    copies: int
    copy_tokens_per_s: float
    num_chips: int
    num_racks: int
    power_w: float | None
    usd_per_hour: float | None
    utilisation: float
    usd_per_mtok_output_all_in: float | None
    copy_share: float | None
    fleet_share: float | None
    billed_chips: int
    requests_per_s: float | None = None
    interactive: Interactive | None = None
    power_basis: str = ""

    @property
    def usd_per_month(self) -> float | None:
        """Rent of 730 hours [USD]."""
        return None if self.usd_per_hour is None else HOURS_PER_MONTH * self.usd_per_hour

    @property
    def usd_per_request(self) -> float | None:
        """Rent over the mean traffic, idle hours included; None without a price or lengths [USD]."""
        if self.usd_per_hour is None or not self.requests_per_s:
            return None
        return self.usd_per_hour / 3600.0 / self.requests_per_s

    @property
    def usd_per_user(self) -> float | None:
        """Rent of a month over the users; None where the traffic was given as a rate [USD]."""
        if self.usd_per_month is None or self.interactive is None:
            return None
        return self.usd_per_month / self.interactive.population.users

    @property
    def tokens_per_joule(self) -> float | None:
        """Output of all copies at full traffic over the power of the site [tokens/J]."""
        return self.copies * self.copy_tokens_per_s / self.power_w if self.power_w else None

    @property
    def racks_per_megawatt(self) -> float | None:
        """Racks that a megawatt of the site supplies [count]."""
        return self.num_racks / self.power_w * 1e6 if self.power_w else None


def fleet(
    traffic: Traffic,
    copy_tokens_per_s: float,
    parts: tuple[Part, ...],
    copies: int | None = None,
    *,
    pue: float = 1.0,
) -> Fleet:
    """Copies, racks, power and rent for some traffic.

    Args:
        copy_tokens_per_s: output tokens of one copy of the deployment [tokens/s].
        parts: replicas of one copy by cluster; two parts for pools on different clusters.
        copies: number of copies, if it is known; else as many as the traffic needs [count].
        pue: power of the site over that of the machines; power by the nameplate has it already [1].

    Assumes: replicas share racks, see `packed_racks`; pools may then lie in different racks.

    Sources: lecture C32, C33.
    """
    require(copy_tokens_per_s > 0, what="copy_tokens_per_s", given=copy_tokens_per_s, allowed="more than 0 tokens/s")
    copies = copies or max(1, math.ceil(traffic.capacity_tokens_per_s / copy_tokens_per_s))
    power, known_power, known_price = 0.0, True, True
    basis: dict[str, None] = {}
    billed = _billed(parts, copies)
    usd = sum((on.usd_per_chip_hour or 0.0) * chips for on, chips in billed)
    held: dict[str, tuple[int, list[tuple[int, int]]]] = {}  # chips of a rack, (chips, count) of its replicas
    for part in parts:
        bill = rack_bill(part.cluster, copies * part.num_chips)
        _, replicas = held.setdefault(part.cluster.name, (bill.chips_per_rack, []))
        replicas.append((part.replica_chips, copies * part.replicas))
        whole_w = bill.power_w if part.power is None else part.power.site_w(pue) * bill.num_chips
        basis[part.power.basis if part.power else "nameplate"] = None
        known_power &= whole_w is not None
        known_price &= bill.usd_per_hour is not None
        power += whole_w or 0.0
    for on, chips in billed:
        mine = [part for part in parts if part.cluster.name == on.name]
        waiting = power_of(on, float(drawn_w(on.chip, 0.0, 1.0)))
        if waiting is not None and all(part.power is not None for part in mine):
            power += waiting.site_w(pue) * (chips - copies * sum(part.num_chips for part in mine))
    provider = traffic.provider_tokens_per_s
    return Fleet(
        traffic=traffic,
        copies=copies,
        copy_tokens_per_s=copy_tokens_per_s,
        num_chips=copies * sum(part.num_chips for part in parts),
        num_racks=sum(packed_racks(size, replicas) for size, replicas in held.values()),
        power_w=power if known_power else None,
        power_basis=", ".join(basis) if known_power else "",
        usd_per_hour=usd if known_price else None,
        utilisation=traffic.tokens_per_s / (copies * copy_tokens_per_s),
        usd_per_mtok_output_all_in=usd / (traffic.tokens_per_s * 3600.0) * 1e6 if known_price else None,
        copy_share=None if provider is None else copy_tokens_per_s / provider,
        fleet_share=None if provider is None else traffic.tokens_per_s / provider,
        billed_chips=sum(chips for _, chips in billed),
    )


def _billed(parts: tuple[Part, ...], copies: int) -> list[tuple[Cluster, int]]:
    """Chips that are paid for on each cluster: whole hosts, trays or slices [count]."""
    taken: dict[str, float] = {}
    used: dict[str, int] = {}
    clusters = {part.cluster.name: part.cluster for part in parts}
    for part in parts:
        name = part.cluster.name
        taken[name] = taken.get(name, 0.0) + copies * part.taken_chips
        used[name] = used.get(name, 0) + copies * part.num_chips
    return [(on, max(round(float(billed_chips(on, taken[name]))), used[name])) for name, on in clusters.items()]


def fleet_of_users(
    population: Population,
    traffic: Traffic,
    output_len: float,
    response: Response,
    parts: tuple[Part, ...],
    *,
    pue: float = 1.0,
) -> Fleet:
    """The fleet that users need who think between an answer and their next request.

    Args:
        traffic: of which only the peak and the provider are read.
        output_len: tokens of an answer, on average [tokens].
        response: of one copy, at the rate that meets its limits.
        parts, pue: as for `fleet`.
    """
    most = population.most(response)
    copies = max(1, math.ceil(population.users * traffic.peak_over_mean / most))
    rate = population.requests_per_s(response, copies)
    found = fleet(
        replace(traffic, tokens_per_s=rate * output_len),
        response.requests_per_s * output_len,
        parts,
        copies=copies,
        pue=pue,
    )
    response_s = response.at(rate / copies)
    return replace(
        found,
        requests_per_s=rate,
        interactive=Interactive(
            population=population, users_per_copy=most, response_s=response_s, waiting_users=rate * response_s
        ),
    )


def packed_racks(chips_per_rack: int, replicas: list[tuple[int, int]]) -> int:
    """Racks that hold replicas of several sizes, each rack filled with the largest that still fits.

    Args:
        replicas: (chips of a replica, number of replicas); one larger than a rack takes whole racks and a remainder.

    >>> packed_racks(72, [(27, 4), (16, 4)])
    3
    >>> packed_racks(72, [(144, 1), (80, 1)])
    4
    """
    racks = sum(size // chips_per_rack * count for size, count in replicas)
    rest = sorted(((size % chips_per_rack, count) for size, count in replicas), reverse=True)
    left = [[size, count] for size, count in rest if size > 0 and count > 0]
    while any(count for _, count in left):
        room, filling = chips_per_rack, list[tuple[int, int]]()
        for index, (size, count) in enumerate(left):
            taken = min(count, room // size)
            room -= taken * size
            filling.append((index, taken))
        # the same filling repeats until one size runs out
        times = min(left[index][1] // taken for index, taken in filling if taken)
        for index, taken in filling:
            left[index][1] -= taken * times
        racks += times
    return racks


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Power of a chip and what it comes to.

    Args:
        chip_w: mean power of a chip [W].
        wall_w: with its share of host, fans and switches, at the machine's plug [W].
        basis: "kernels": from what the chip does; "other generations": with the numbers of chips of other generations;
            "nameplate": what the record states for full load, where not even the chip's limit is known.
        cap_w: power cap of the chips; None without one [W].
    """

    json_keys: ClassVar = ("chip_w", "wall_w", "basis", "cap_w")

    chip_w: float
    wall_w: float
    basis: str
    cap_w: float | None = None

    def site_w(self, pue: float) -> float:
        """Power of the site, per chip [W]; that of the nameplate has its cooling already.

        Args:
            pue: power of the site over that of the machines [1].
        """
        return self.wall_w * (1.0 if self.basis == "nameplate" else pue)

    def joules_per_request(self, chips: float, requests_per_s: float) -> float:
        """Energy at the plug of a request of what `chips` chips serve [J]."""
        return self.wall_w * chips / requests_per_s


def mean_step(engine: Engine, work: Workload | Workloads, sequences: FloatLike) -> Batch:
    """The work of a mean step of a rank: its decodes, and its share of the prompts that replace finished requests.

    Args:
        sequences: b, decoding on a rank and pipeline micro-batch [sequences].
    """
    b = as_array(sequences)
    verified, per_step = engine.speculation.verified_tokens, engine.speculation.tokens_per_step
    prompts = b * per_step / (work.output_len - 1.0)
    return Batch(
        decode_sequences=b,
        decode_tokens=verified,
        context_len=work.mean_context,
        prefill_sequences=prompts,
        chunk_tokens=work.new_tokens,
        prefix_tokens=work.prefix_tokens,
        group_tokens=(b * verified + prompts * work.new_tokens) * engine.attention_dp,
    )


def step_joules(engine: Engine, work: Workload | Workloads, sequences: FloatLike) -> Array:
    """Energy that the kernels of a mean step take on one chip beyond what it draws idle [J]."""
    joules = engine.table.kernel_joules(mean_step(engine, work, sequences))
    if engine.draft is not None and engine.speculation.draft_tokens:
        drafted = Batch(decode_sequences=as_array(sequences), context_len=work.mean_context)
        joules = joules + engine.speculation.draft_tokens * engine.draft.kernel_joules(drafted)
    return joules


def power_of(cluster: Cluster, chip_w: float) -> Power | None:
    """Power of a chip with its share of the machine; that of the nameplate where nothing else is known, else None.

    Args:
        chip_w: mean power of the chip itself; not a number where nothing is known of it [W].
    """
    chip = cluster.chip
    if chip.power is not None:
        basis = "other generations" if chip.power.other_generation else "kernels"
        return Power(chip_w=chip_w, wall_w=wall_w(cluster, chip_w), basis=basis, cap_w=chip.power_cap_w)
    if cluster.power_w_per_chip is None:
        return None
    return Power(chip_w=cluster.power_w_per_chip, wall_w=cluster.power_w_per_chip, basis="nameplate")


def request_joules(engine: Engine, layout: Layout, work: Workload, sequences: float) -> float:
    """Energy that the kernels of all chips of a replica take for one request, prompt and output, beyond idle [J].

    Args:
        sequences: that decode together on a rank and pipeline micro-batch [sequences].
    """
    return _of_request(engine, layout, work, sequences, float(step_joules(engine, work, sequences)))


def output_joules(engine: Engine, layout: Layout, work: Workload, sequences: float) -> float:
    """The same for the output alone, on a pool that decodes [J]."""
    decoding = Batch(
        decode_sequences=sequences,
        decode_tokens=engine.speculation.verified_tokens,
        context_len=work.mean_context,
        group_tokens=sequences * engine.speculation.verified_tokens * layout.attention_dp,
    )
    return _of_request(engine, layout, work, sequences, float(engine.table.kernel_joules(decoding)))


def prompt_joules(engine: Engine, layout: Layout, work: Workload, max_batched_tokens: float) -> float:
    """The same for the prompt alone, in passes full of prompts [J]; a prompt may be shared by cp ranks."""
    ranks = layout.attention_dp * layout.cp
    full = replace(prefill_chunk(work, max_batched_tokens, layout.cp), group_tokens=max_batched_tokens * ranks)
    passes = work.new_tokens / max_batched_tokens  # of all ranks, for one prompt
    return float(engine.table.kernel_joules(full)) * passes * (layout.chips_per_replica / (layout.pp * ranks))


def _of_request(engine: Engine, layout: Layout, work: Workload, sequences: float, joules: float) -> float:
    """Energy of the steps of a request, from that of a step of one chip for one micro-batch, all its layers [J]."""
    steps = (work.output_len - 1.0) / engine.speculation.tokens_per_step
    return joules * steps * layout.chips_per_replica / (sequences * layout.attention_dp * layout.pp)


def power_at(cluster: Cluster, joules_per_request: float, requests_per_s: float, chips: float) -> Power | None:
    """Mean power of a chip that serves its share of some requests.

    Args:
        joules_per_request: of the kernels of all chips that a request runs on, beyond idle [J].
        requests_per_s: rate of all chips together [requests/s].
        chips: that serve them [count].
    """
    return power_of(cluster, float(drawn_w(cluster.chip, joules_per_request * requests_per_s / chips, 1.0)))

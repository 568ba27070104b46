"""What `simulate` finds of a load over time: the outcome of each policy, and the marks that they are measured by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rackline.api.server import Server
from rackline.api.traffic import Use
from rackline.late import late

with late:
    from rackline import simulation
    from rackline.simulation import classes, fleet_pool, fleet_run, load as loads


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What a replica takes.

    Args:
        pool: "prompts", "outputs" or "all".
        capacity_per_s: its highest rate within the limits [requests/s].
        running: requests in it at 70 % of that rate [requests].
        kv_use: share of its KV blocks in use, likewise [1].
        chips: of it [count].
    """

    pool: str
    capacity_per_s: float
    running: float
    kv_use: float
    chips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a policy did, over one seed or as a mean over several.

    Args:
        policy: its name.
        chip_hours: that were paid for [chip h].
        usd: of them; None without a price [USD].
        attained: share of the requests answered within the limits [1].
        holds: whether each limit is met at its percentile.
        ttft_p99_s, tpot_p99_s: over the whole run [s].
        mean_replicas, most_replicas: that were paid for [count].
        requests, refused, unanswered: of the run [requests].
        lost_requests: that were sent again as their replica failed [requests].
        failed_replicas: [count].
        over_oracle, over_perfect: chip-hours over those of the oracle, and of a perfect system, less 1; None for
            themselves [1].
        intervals: half of the 95 % interval of the mean over seeds, by name; empty for one seed.
    """

    json_keys: ClassVar = (
        "policy", "chip_hours", "usd", "attained", "holds", "ttft_p99_s", "tpot_p99_s", "mean_replicas",
        "most_replicas", "requests", "refused", "unanswered", "lost_requests", "failed_replicas", "over_oracle",
        "over_perfect", "intervals",
    )  # fmt: skip

    policy: str
    chip_hours: float
    usd: float | None
    attained: float
    holds: bool
    ttft_p99_s: float
    tpot_p99_s: float
    mean_replicas: float
    most_replicas: float
    requests: float
    refused: float
    unanswered: float
    lost_requests: float
    failed_replicas: float
    over_oracle: float | None = None
    over_perfect: float | None = None
    intervals: dict[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One policy: its outcome, and the run of the first seed.

    Args:
        outcome: over all seeds.
        run: of the first.
        windows: of it.
    """

    json_keys: ClassVar = ("*outcome", "interrupted=run.interrupted", "by_class", "frontend=run.frontend", "windows")

    outcome: Outcome
    run: fleet_run.FleetRun
    windows: tuple[fleet_run.WindowRow, ...]

    @property
    def by_class(self) -> list[classes.ClassData]:
        """What became of each class of requests in the first run; empty where there are none."""
        return self.run.by_class()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRuns:
    """A load over time, served under each policy.

    Args:
        server: a replica, and what comes before it.
        load: the rates.
        slo: limits.
        marks: a replica of each pool at its highest rate within them.
        start: of a replica, in parts; None where a time was given.
        start_s: the whole [s].
        perfect_chip_hours: of a system that follows the load at once, in any fraction, at that rate [chip h].
        ran: each policy that was asked for, then the oracle.
        window_s: time of a window [s].
        reason: why there is none; empty otherwise.
        seeds: runs of each policy [count].
        use: what the use added to the question.
    """

    json_keys: ClassVar = (
        "deployment=server", "load", "slo", "replica=marks", "start_up=start",
        "start_up_s=start_s", "perfect_chip_hours", "perfect_usd", "policies=ran", "reason", "seeds", "use",
    )  # fmt: skip

    server: Server
    load: loads.Load
    slo: simulation.Slo
    marks: tuple[Mark, ...]
    start: fleet_pool.StartUp | None
    start_s: float
    perfect_chip_hours: float
    ran: tuple[Ran, ...]
    window_s: float
    reason: str = ""
    seeds: int = 1
    use: Use | None = None

    @property
    def first(self) -> Ran:
        """The first policy that was asked for."""
        return self.ran[0]

    @property
    def perfect_usd(self) -> float | None:
        """What a perfect system would cost [USD]."""
        price = self.server.deployment.cluster.usd_per_chip_hour
        return None if price is None else price * self.perfect_chip_hours

"""The server of a simulation: pools of replicas, their caches and a hand-over, put together from a system.

A setup says how many replicas there are, how they are laid out and what requests pass before them. The system says what
they run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

from rackline.parallel import Deployment, Layout
from rackline.parallel.memory import kv_size
from rackline.search.choice import Energy
from rackline.search.finalists import FrontPool, run_energy
from rackline.search.rate_capacity import RateCapacity
from rackline.search.served import prompt_cost_share
from rackline.serving import Stack
from rackline.serving.alignment import Alignment
from rackline.serving.capacity import Capacity, capacity
from rackline.serving.workload import PLAIN, Speculation
from rackline.simulation import CacheConfig, Handover, Pool, Requests, Result, Slo, pool_of, simulate
from rackline.simulation.entrance import AdmissionRule, Entrance, Stage
from rackline.simulation.metrics import Costs, RunData
from rackline.simulation.run import Progress
from rackline.system import System


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that is ready to run.

    Args:
        deployment: of one replica.
        pool: the replicas that decode.
        router: which of them gets a request.
        admission: rule that refuses requests; None serves all.
        frontend: what requests pass before them.
        prefill: the pool that computes prompts, if there is one.
        beyond_s: time to the first token beside the passes [s].
        chips: in all [chips].
        prefill_chips: of one replica of the prefill pool [chips].
        prefill_layout: of that pool; None without one.
    """

    json_keys: ClassVar = (
        "*deployment",
        "policy=pool.policy.name",
        "replicas=pool.replicas",
        "prefill_replicas",
        "num_chips=chips",
        "router",
        "admission",
        "frontend",
        "kv_tokens_per_rank=pool.spec.pool_tokens",
        "max_num_seqs=pool.spec.max_num_seqs",
        "max_batched_tokens=pool.spec.max_batched_tokens",
    )

    deployment: Deployment
    pool: Pool
    router: str
    prefill: Handover | None
    beyond_s: float
    chips: int
    prefill_chips: int
    prefill_layout: Layout | None = None
    admission: AdmissionRule | None = None
    frontend: tuple[Stage, ...] = ()

    @property
    def entrance(self) -> Entrance:
        """What requests pass before a replica."""
        return Entrance(router=self.router, admission=self.admission, frontend=self.frontend, beyond_s=self.beyond_s)

    @property
    def prefill_replicas(self) -> int:
        """Replicas of the prefill pool."""
        return self.prefill.pool.replicas if self.prefill else 0

    @property
    def usd_per_s(self) -> float | None:
        """What all chips cost [USD/s]."""
        price = self.deployment.cluster.usd_per_chip_hour
        return None if price is None else price * self.chips / 3600.0

    def costs(self, result: Result) -> Costs | None:
        """Costs of the tokens of a run; None without a price."""
        if self.usd_per_s is None:
            return None
        front = self.prefill_replicas * self.prefill_chips
        share = front / self.chips if front else prompt_cost_share(result, self.pool)
        return result.usd_per_mtok(self.usd_per_s, share)

    def energy(self, result: Result) -> Energy | None:
        """Return power and energy of a run; None if no request ended or the power of the chips is unknown."""
        if self.prefill is None:
            return run_energy(result, self.pool, self.deployment, self.chips)
        ahead = self.prefill_replicas * self.prefill_chips
        front = FrontPool(
            pool=self.prefill.pool,
            deployment=replace(self.deployment, layout=self.prefill_layout or self.deployment.layout),
            chips=ahead,
        )
        return run_energy(result, self.pool, self.deployment, self.chips - ahead, front)

    def serve(
        self, requests: Requests, skip_bad: bool, progress: Progress | None, *, keep_passes: bool = False
    ) -> Result:
        """Serve requests.

        Args:
            skip_bad: leave out requests that can never fit.
            progress: is told how far it is.
            keep_passes: keep a record of each pass.
        """
        return simulate(
            requests,
            self.pool,
            router=self.router,
            prefill=self.prefill,
            beyond_s=self.beyond_s,
            admission=self.admission,
            frontend=self.frontend,
            skip_bad=skip_bad,
            progress=progress,
            keep_passes=keep_passes,
        )

    def title(self, requests: Requests) -> str:
        """Description of the server and its requests."""
        d = self.deployment
        front = f" + {self.prefill_replicas} for prompts" if self.prefill else ""
        return (
            f"{d.model.name} on {d.cluster.name}: {self.pool.replicas}{front} × {d.layout.label()}, "
            f"{d.precision.short()}, {self.pool.policy.name.replace('_', ' ')}; {requests.name}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """How a pool schedules its passes.

    Args:
        policy_name: scheduling policy; the stack's by default.
        alignment: how attention-dp ranks wait for each other's prompts; the policy's by default.
        two_batch_overlap: whether passes run as two half batches, one computing while the other communicates.
    """

    policy_name: str | None = None
    alignment: Alignment | None = None
    two_batch_overlap: bool = False

    def on(self, pool: Pool) -> Pool:
        """Return a pool of this policy with its alignment."""
        if self.alignment is None:
            return pool
        return replace(pool, policy=replace(pool.policy, alignment=self.alignment))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How the servers of a system are set up.

    Args:
        layout: of a replica that decodes.
        replicas: that decode [count].
        prefill_layout: of a replica that computes prompts.
        prefill_replicas: that compute prompts; 0 where one pool does both [count].
        cache: the KV cache of each rank. Its size applies to the ranks that decode.
        chips: of all replicas [count].
        scheduling: of the replicas that decode.
        prefill_scheduling: of those that compute prompts; None for the same.
        prefill_stack: that these run; the system's prefill-only workers by default.
        router: which replica gets a request.
        admission: rule that refuses requests; None serves all.
        frontend: what requests pass before the replicas.
        speculation: draft tokens per step, and the tokens that a step yields.
        kv_link_bytes_per_s: transfer of a request's KV cache between the pools [bytes/s].
    """

    layout: Layout
    replicas: int
    prefill_layout: Layout
    prefill_replicas: int
    cache: CacheConfig
    chips: int
    scheduling: Scheduling = Scheduling()
    prefill_scheduling: Scheduling | None = None
    prefill_stack: Stack | None = None
    router: str = "round-robin"
    admission: AdmissionRule | None = None
    frontend: tuple[Stage, ...] = ()
    speculation: Speculation = PLAIN
    kv_link_bytes_per_s: float = inf


def server_of(system: System, setup: Setup) -> Server:
    """Put together the server of a system.

    Raises:
        InputError: no memory is left for the KV cache.
    """
    stack, ahead, how = system.stack, setup.prefill_replicas, setup.scheduling
    prefill_stack = setup.prefill_stack or stack.prefill_pool()
    deployment = system.deployment(setup.layout)
    pool = pool_of(
        deployment,
        stack,
        cache=setup.cache,
        policy_name=how.policy_name,
        two_batch_overlap=how.two_batch_overlap,
        replicas=setup.replicas,
        speculation=setup.speculation,
    )
    front = replace(deployment, layout=setup.prefill_layout)
    return Server(
        deployment=deployment,
        pool=how.on(pool),
        router=setup.router,
        admission=setup.admission,
        frontend=setup.frontend,
        prefill=_prefill(setup, front, prefill_stack) if ahead else None,
        beyond_s=(prefill_stack if ahead else stack).arrivals.first_token_s,
        chips=setup.chips,
        prefill_chips=setup.prefill_layout.chips_per_replica,
        prefill_layout=setup.prefill_layout if ahead else None,
    )


def _prefill(setup: Setup, deployment: Deployment, stack: Stack) -> Handover:
    """The prefill pool, and its KV cache transfer."""
    size = kv_size(deployment.model, setup.layout, deployment.precision)
    link, grown = setup.kv_link_bytes_per_s, float(size.bytes_per_token)
    how = setup.prefill_scheduling or setup.scheduling
    hop_s = 0.0 if deployment.calibration.is_unit else deployment.cluster.levels[-1].latency_s
    return Handover(
        pool=how.on(
            pool_of(
                deployment,
                stack,
                cache=replace(setup.cache, pool_tokens=None),
                policy_name=how.policy_name,
                two_batch_overlap=how.two_batch_overlap,
                replicas=setup.prefill_replicas,
            )
        ),
        tokens_per_s=link / grown if grown else inf,
        latency_s=hop_s + float(size.fixed_bytes) / link,
    )


def kv_bytes_per_token(deployment: Deployment, block_size: int) -> float:
    """Return what a token takes in the KV cache of a rank [bytes].

    Args:
        block_size: tokens of a block [tokens].
    """
    size = kv_size(deployment.model, deployment.layout, deployment.precision)
    return float(size.in_tokens(block_size)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestLayout:
    """The layout of a replica on the fewest chips.

    Args:
        capacity: all layouts, with the requests of usual length that each holds.
        usual: the smallest that holds a request of usual length; None where none does.
        roomy: the smallest that holds the longest request, where the usual one does not; None where it does, or where
            none does.
    """

    capacity: Capacity
    usual: Layout | None
    roomy: Layout | None = None


def smallest_layout(system: System, longest: int, block_size: int) -> SmallestLayout:
    """The fewest chips that hold a request of usual length, with the most room among those; more where a rank of them
    has no room for the longest request.

    Args:
        longest: of the requests, prompt and answer [tokens].
        block_size: of the KV cache, by which a request is rounded up, and may be decoded ahead [tokens].
    """
    server = system.server()
    found = capacity(system.model, system.cluster, system.precision, server=server)
    usual = _fewest_chips(found)
    if usual is None:
        return SmallestLayout(capacity=found, usual=None)
    held = float(longest + 2 * block_size)
    if system.deployment(usual).max_sequences(context_len=held, server=server) >= 1:
        return SmallestLayout(capacity=found, usual=usual)
    roomy = _fewest_chips(capacity(system.model, system.cluster, system.precision, context_len=held, server=server))
    return SmallestLayout(capacity=found, usual=usual, roomy=None if roomy == usual else roomy)


def _fewest_chips(found: Capacity) -> Layout | None:
    """The layout that holds a request on the fewest chips; among equals the one with the most room."""
    best = min(
        (row for row in found.rows if row.max_concurrency >= 1),
        key=lambda row: (row.layout.chips_per_replica, row.layout.pp, -row.layout.tp, -row.max_concurrency),
        default=None,
    )
    return best and best.layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One server's run.

    Args:
        server: that served.
        result: its passes, times and counts.
        slo: limits by which it is judged.
    """

    server: Server
    result: Result
    slo: Slo | None

    json_keys: ClassVar = ("*summary", "energy")

    @property
    def summary(self) -> RunData:
        """Percentiles, rates and costs in SI units."""
        return self.result.summary(self.slo, self.server.costs(self.result))

    @property
    def energy(self) -> Energy | None:
        """Power and energy; None where nothing is known of the chips' power."""
        return self.server.energy(self.result)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """The highest rate that a server holds.

    Args:
        capacity: the rate and those that were tried.
        at_capacity: the run at that rate, if any held.
        server: that served.
        requests: that were served, at other rates.
    """

    json_keys: ClassVar = ("*capacity", "deployment=server", "at_capacity")

    capacity: RateCapacity
    at_capacity: Run | None
    server: Server
    requests: Requests

"""Options of `rackline simulate` that say who serves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

from rackline.cli.options import find_calibration, memory_fraction, read_routing, whole
from rackline.cli.traffic import read_tiers
from rackline.errors import InputError, nearest_names
from rackline.units import parse_count, parse_rate

if TYPE_CHECKING:
    from rackline.arch import AnyModel
    from rackline.hardware import Cluster
    from rackline.parallel import Deployment, Layout
    from rackline.simulation import Handover, Pool, Requests, Result
    from rackline.simulation.run import Progress

_COMPARED = (
    "on", "chips", "policy", "layout", "replicas", "router", "max-batched-tokens", "max-num-seqs", "kv-tokens",
    "precision", "calibration", "stack", "prefix-caching", "reserve", "speculate", "prefill-replicas",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltServer:
    """A server that is ready to run."""

    deployment: Deployment
    pool: Pool
    router: str
    prefill: Handover | None
    beyond_s: float
    chips: int
    prefill_chips: int

    @property
    def usd_per_s(self) -> float | None:
        price = self.deployment.cluster.usd_per_chip_hour
        return None if price is None else price * self.chips / 3600.0

    def costs(self, result: Result) -> dict[str, float] | None:
        """Costs of the tokens of a run; None without a price."""
        from rackline.search.cost import prompt_cost_share

        if self.usd_per_s is None:
            return None
        front = self.prefill.pool.replicas * self.prefill_chips if self.prefill else 0
        share = front / self.chips if front else prompt_cost_share(result, self.pool)
        return result.usd_per_mtok(self.usd_per_s, share)

    def serve(
        self, requests: Requests, skip_bad: bool, progress: Progress | None, *, keep_passes: bool = False
    ) -> Result:
        from rackline.simulation import simulate as run

        return run(
            requests,
            self.pool,
            router=self.router,
            prefill=self.prefill,
            beyond_s=self.beyond_s,
            skip_bad=skip_bad,
            progress=progress,
            keep_passes=keep_passes,
        )

    def as_dict(self) -> dict[str, Any]:
        spec = self.pool.spec
        return {
            **self.deployment.as_dict(),
            "policy": self.pool.policy.name,
            "replicas": self.pool.replicas,
            "prefill_replicas": self.prefill.pool.replicas if self.prefill else 0,
            "num_chips": self.chips,
            "router": self.router,
            "kv_tokens_per_rank": spec.pool_tokens,
            "max_num_seqs": spec.max_num_seqs,
            "max_batched_tokens": spec.max_batched_tokens,
        }

    def title(self, requests: Requests) -> str:
        d = self.deployment
        front = f" + {self.prefill.pool.replicas} for prompts" if self.prefill else ""
        return (
            f"{d.model.name} on {d.cluster.name}: {self.pool.replicas}{front} × {d.layout.label()}, "
            f"{d.precision.short()}, {self.pool.policy.name.replace('_', ' ')}; {requests.name}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of the server as they were typed."""

    model: AnyModel
    cluster: Cluster
    layout: str | None
    replicas: str | None
    router: str
    policy: str | None
    max_batched_tokens: str | None
    max_num_seqs: str | None
    kv_tokens: str | None
    block_size: str
    reserve: str | None
    prefix_caching: bool
    tier: tuple[str, ...]
    swap: str | None
    prefill_replicas: str | None
    prefill_layout: str | None
    kv_link: str
    speculate: str | None
    precision: str
    calibration: str
    stack: str | None
    memory: str | None
    routing: str

    def with_changes(self, text: str) -> ServerOptions:
        """Another server: "policy=prefill-first,max-num-seqs=64"; a layout's own commas are written as "+".

        Another cluster ("on=dgx-h200,chips=4") comes with its own chips and prices.
        """
        from rackline.hardware import cluster

        changes: dict[str, Any] = {}
        rack, chips = self.cluster, None
        for part in text.split(","):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if key not in _COMPARED or not equals:
                near = nearest_names(key, _COMPARED, 1)
                raise InputError(
                    what="--compare",
                    given=text,
                    allowed=f"KEY=VALUE with a key of {', '.join(_COMPARED)} (+ for the commas of a value)",
                    nearest=f"{near[0]}=..." if near else None,
                )
            name = key.replace("-", "_")
            if name == "on":
                rack = cluster(value)
            elif name == "chips":
                chips = whole(value, "--compare chips")
            else:
                changes[name] = (
                    value not in ("no", "false", "0") if name == "prefix_caching" else value.replace("+", ",")
                )
        return replace(self, cluster=rack if chips is None else rack.with_num_chips(chips), **changes)

    def build(self, hash_tokens: int) -> BuiltServer:
        """Find layout, stack and pool."""
        from rackline.parallel import Deployment, parse_layout
        from rackline.parallel import precision as find_precision
        from rackline.serving.stack import stack as find_stack
        from rackline.serving.stack import stack_of
        from rackline.simulation import Handover, kv_size, pool_of
        from rackline.simulation.router import router as find_router

        find_router(self.router)
        chip = self.cluster.chip
        calibration = find_calibration(self.calibration, chip)
        if self.stack is not None:
            name, _, version = self.stack.partition("=")
            stack = find_stack(name, version=version, hbm_bytes=chip.hbm_bytes)
        else:
            stack = stack_of(calibration)
        numbers: dict[str, Any] = {}
        for key, text in (("max_batched_tokens", self.max_batched_tokens), ("max_num_seqs", self.max_num_seqs)):
            if text is not None:
                numbers[key] = whole(text, f"--{key.replace('_', '-')}")
        if self.memory is not None:
            numbers["memory_fraction"] = memory_fraction(self.memory)
        stack = replace(stack, **numbers)
        precision = find_precision(self.precision, self.model, chip)
        layout = parse_layout(self.layout, self.model) if self.layout else self._smallest(precision, stack)
        routing = read_routing(self.routing)

        def deployed(of: Layout) -> Deployment:
            return Deployment(
                model=self.model,
                cluster=self.cluster,
                layout=of,
                precision=precision,
                calibration=calibration,
                routing=routing,
            )

        deployment = deployed(layout)
        size = kv_size(self.model, layout, precision)
        block_size = whole(self.block_size, "--block-size")
        fits = max(1, self.cluster.num_chips // layout.chips_per_replica)
        front_layout = parse_layout(self.prefill_layout, self.model) if self.prefill_layout else layout
        front_count = whole(self.prefill_replicas, "--prefill-replicas") if self.prefill_replicas else 0
        left = self.cluster.num_chips - front_count * front_layout.chips_per_replica
        count = whole(self.replicas, "--replicas") if self.replicas else max(1, left // layout.chips_per_replica)
        used = count * layout.chips_per_replica + front_count * front_layout.chips_per_replica
        if used > self.cluster.num_chips:
            raise InputError(
                what="--replicas",
                given=f"{count + front_count} on {used} chips",
                allowed=f"up to {self.cluster.num_chips} chips (see --chips)",
                nearest=str(fits),
            )
        reserve = next((known for known in ("chunk", "prompt", "final") if known == self.reserve), None)
        if self.reserve is not None and reserve is None:
            raise InputError(what="--reserve", given=self.reserve, allowed="chunk, prompt or final")
        options: dict[str, Any] = {
            "policy_name": self.policy,
            "block_size": block_size,
            "reserve": reserve,
            "prefix_caching": self.prefix_caching or bool(self.tier),
            "hash_tokens": hash_tokens,
            "tiers": read_tiers(self.tier, size.in_tokens(block_size)[0]),
            "swap_bytes_per_s": parse_rate(self.swap, name="--swap") if self.swap else 0.0,
        }
        prefill = None
        if front_count:
            link = parse_rate(self.kv_link, name="--kv-link")
            prefill = Handover(
                pool=pool_of(deployed(front_layout), stack, replicas=front_count, **options),
                tokens_per_s=link / size.bytes_per_token if size.bytes_per_token else inf,
                latency_s=(0.0 if calibration.is_unit else self.cluster.levels[-1].latency_s) + size.fixed_bytes / link,
            )
        pool = pool_of(
            deployment,
            stack,
            replicas=count,
            pool_tokens=whole(self.kv_tokens, "--kv-tokens") if self.kv_tokens else None,
            speculation=self._speculation(),
            **options,
        )
        return BuiltServer(
            deployment=deployment,
            pool=pool,
            router=self.router,
            prefill=prefill,
            beyond_s=stack.first_token_s,
            chips=used,
            prefill_chips=front_layout.chips_per_replica,
        )

    def _speculation(self) -> Any:
        from rackline.serving.speculative import PLAIN, Speculation, usual_speculation

        if self.speculate is None:
            return PLAIN
        drafts, equals, yielded = self.speculate.partition("=")
        count = whole(drafts, "--speculate", minimum=0)
        if not equals:
            return usual_speculation(count)
        return Speculation(draft_tokens=count, tokens_per_step=parse_count(yielded, name="--speculate tokens"))

    def _smallest(self, precision: Any, stack: Any) -> Layout:
        """The fewest chips that hold a request, with the most room among those."""
        from rackline.serving.capacity import capacity

        found = capacity(
            self.model,
            self.cluster,
            precision,
            memory_fraction=stack.memory_fraction,
            batched_tokens=stack.max_batched_tokens,
        )
        holding = [row for row in found.rows if row.max_concurrency >= 1]
        if not holding:
            from rackline.report.capacity_report import nearest_reason

            raise InputError(
                what=f"{self.model.name} on {self.cluster.name}",
                given=nearest_reason(found),
                allowed="a cluster that holds weights and a request of 8k tokens (see rackline fit)",
            )
        chips = min(row.layout.chips_per_replica for row in holding)
        return max(
            (row for row in holding if row.layout.chips_per_replica == chips),
            key=lambda row: (-row.layout.pp, row.layout.tp, row.max_concurrency),
        ).layout

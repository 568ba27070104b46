"""`rackline simulate`: requests in, percentiles of latency out."""

from __future__ import annotations

import json as json_text
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from rackline.cli.options import (
    Json,
    MaybeValue,
    On,
    Overrides,
    Several,
    Value,
    check_file_to_write,
    find_calibration,
    memory_fraction,
    read_model_and_cluster,
    read_routing,
    whole,
)
from rackline.cli.screen import print_json, requests_done, screen
from rackline.cli.traffic import Traffic, read_limits, read_tiers
from rackline.errors import InputError, nearest_names
from rackline.units import parse_count, parse_rate

if TYPE_CHECKING:
    from rackline.arch import AnyModel
    from rackline.hardware import Cluster
    from rackline.parallel import Deployment, Layout
    from rackline.simulate import Handover, Pool, Requests, Result
    from rackline.simulate.run import Progress

Flag = Annotated[bool, Parameter(negative=())]
_COMPARED = (
    "policy", "layout", "replicas", "router", "max-batched-tokens", "max-num-seqs", "kv-tokens", "precision",
    "calibration", "stack", "prefix-caching", "reserve", "speculate", "prefill-replicas",
)  # fmt: skip


def simulate(
    model: str,
    /,
    *,
    on: On,
    trace: str | None = None,
    rate: MaybeValue = None,
    users: MaybeValue = None,
    requests: MaybeValue = None,
    input_len: Annotated[MaybeValue, Parameter(name="--input")] = None,
    output_len: Annotated[MaybeValue, Parameter(name="--output")] = None,
    lengths: str = "fixed",
    burstiness: Value = "1",
    swing: Value = "0",
    turns: MaybeValue = None,
    think: Value = "0s",
    system: Value = "0",
    fast_share: Value = "0",
    speed: Value = "1",
    seed: Value = "0",
    skip_bad: Flag = False,
    slo: str | None = None,
    capacity: str | None = None,
    compare: Several = None,
    layout: str | None = None,
    chips: MaybeValue = None,
    replicas: MaybeValue = None,
    router: str = "round-robin",
    policy: str | None = None,
    max_batched_tokens: MaybeValue = None,
    max_num_seqs: MaybeValue = None,
    kv_tokens: MaybeValue = None,
    block_size: Value = "16",
    reserve: str | None = None,
    prefix_caching: Flag = False,
    tier: Several = None,
    swap: str | None = None,
    prefill_replicas: MaybeValue = None,
    prefill_layout: str | None = None,
    kv_link: str = "50GB/s",
    speculate: str | None = None,
    precision: str = "native",
    calibration: str = "auto",
    stack: str | None = None,
    memory: Annotated[MaybeValue, Parameter(name="--memory-fraction")] = None,
    routing: str = "uniform",
    price: MaybeValue = None,
    sets: Overrides = None,
    json: Json = False,
    plot: str | None = None,
    plot_kind: str = "cdf",
    trace_passes: str | None = None,
    series: str | None = None,
) -> None:
    """Serve a trace or made traffic with a deployment, pass by pass, and print percentiles of latency.

    Traffic is one of --trace, --rate and --users. Ctrl-C prints what was simulated so far.

    Args:
        model: catalogue name, Hugging Face id, TOML file or config.json
        on: cluster: catalogue name or TOML file
        trace: recorded requests: Azure 2023, Mooncake, vLLM's benchmark, or CSV with arrival_s, input_len, output_len
        rate: mean requests a second, or inf for all at once; with --turns conversations that begin a second
        users: a closed loop of so many users, each with one request in flight
        requests: how many; 1000, or all of a trace
        input_len: mean prompt tokens; with --turns of a message
        output_len: mean generated tokens
        lengths: how lengths spread: fixed, uniform (0.8 to 1.2 of the mean), exponential or lognormal
        burstiness: of the gaps between requests: standard deviation over mean; 1 is Poisson
        swing: of a rate that follows the time of day, 0 to 1
        turns: mean turns of a conversation, each with all that was said before as its prompt
        think: mean pause between an answer and the next request of a user, such as 10s
        system: tokens that all conversations begin with
        fast_share: share of requests in the urgent tier, for --policy priority
        speed: run the traffic so many times as fast
        seed: of everything that is drawn
        skip_bad: leave out bad lines and requests that can never fit, and count them
        slo: limits for goodput, such as ttft=2s,tpot=50ms@p99
        capacity: find the highest rate that holds these limits
        compare: KEY=VALUE of another server for the same requests, several with commas; may be repeated
        layout: such as tp=8 or attention_dp=8,ep=8; by default the smallest that fits
        chips: chips to use; the cluster's own number by default
        replicas: servers; by default as many as the chips hold
        router: round-robin, least-loaded or prefix-aware
        policy: chunked, prefill-first, decode-first, fcfs, shortest-job, priority or trains; the stack's by default
        max_batched_tokens: tokens of a pass of one rank; the stack's by default
        max_num_seqs: sequences of one rank; the stack's by default
        kv_tokens: KV cache of one rank; by default what the memory leaves
        block_size: tokens of a KV block
        reserve: cache that must be free for admission: chunk, prompt or final; the policy's by default
        prefix_caching: keep prompt blocks for requests that begin alike
        tier: NAME=BYTES@RATE[@LATENCY] for each tier behind HBM and rank, fastest first; may be repeated
        swap: rate at which preempted sequences move to the host and back, instead of being computed again
        prefill_replicas: so many more servers compute the prompts and hand the cache over
        prefill_layout: their layout; that of the others by default
        kv_link: rate at which the cache of one request moves between the pools, per chip
        speculate: drafts a step, such as 3, or with the tokens that a step yields, such as 3=2.4
        precision: native, bf16, fp8, fp4, mxfp4, int8, int4, or in parts such as fp8,kv=bf16
        calibration: auto (the stack measured most on the chip), trtllm, vllm, sglang, generic, unit or a TOML file
        stack: what runs around the kernels, such as vllm or vllm=0.6.3; that of the calibration by default
        memory: share of HBM that the server may use; the stack's by default
        routing: how tokens spread over experts: uniform, balanced or power-law=EXPONENT
        price: price of a chip, in USD an hour
        sets: KEY=VALUE replaces a number of the model, cluster or chip; may be repeated
        json: print JSON (SI units) and nothing else
        plot: write a figure to FILE.html, .svg or .png
        plot_kind: cdf, timeline or occupancy
        trace_passes: write the passes as a Chrome trace to FILE.json
        series: write one row a request to FILE.parquet or .csv
    """
    from rackline.report.simulate_figures import PLOT_KINDS, check_series_path
    from rackline.report.svg import check_plot_path

    figure_file = check_plot_path(plot) if plot else None
    kind = next((known for known in PLOT_KINDS if known == plot_kind), None)
    if kind is None:
        near = nearest_names(plot_kind, PLOT_KINDS, 1)
        raise InputError(
            what="--plot-kind", given=plot_kind, allowed=", ".join(PLOT_KINDS), nearest=near[0] if near else None
        )
    passes_file = check_file_to_write(trace_passes, "--trace-passes")
    series_file = check_series_path(series)
    limits = read_limits(slo, "--slo") if slo is not None else None
    asked = read_limits(capacity, "--capacity") if capacity is not None else None
    found_model, cluster = read_model_and_cluster(model, on, chips=chips, price=price, sets=sets)
    base = _Server(
        model=found_model,
        cluster=cluster,
        layout=layout,
        replicas=replicas,
        router=router,
        policy=policy,
        max_batched_tokens=max_batched_tokens,
        max_num_seqs=max_num_seqs,
        kv_tokens=kv_tokens,
        block_size=block_size,
        reserve=reserve,
        prefix_caching=prefix_caching,
        tier=tuple(tier or ()),
        swap=swap,
        prefill_replicas=prefill_replicas,
        prefill_layout=prefill_layout,
        kv_link=kv_link,
        speculate=speculate,
        precision=precision,
        calibration=calibration,
        stack=stack,
        memory=memory,
        routing=routing,
    )
    traffic = Traffic(
        trace=trace,
        rate=rate,
        users=users,
        count=requests,
        input_len=input_len,
        output_len=output_len,
        lengths=lengths,
        burstiness=burstiness,
        swing=swing,
        turns=turns,
        think=think,
        system=system,
        fast_share=fast_share,
        speed=speed,
        seed=seed,
        skip_bad=skip_bad,
    ).read()
    others = {text: base.with_changes(text) for text in compare or ()}
    if asked is not None:
        if others:
            raise InputError(what="--compare", given=next(iter(others)), allowed="only without --capacity")
        _capacity(base, traffic, asked, skip_bad, json)
        return
    results: dict[str, Result] = {}
    data: dict[str, dict[str, Any]] = {}
    start = time.perf_counter()
    built = {name: server.build(traffic.hash_tokens) for name, server in {"this": base, **others}.items()}
    for name, one in built.items():
        with requests_done(f"serving {len(traffic):,} requests ({name})" if others else "serving") as progress:
            results[name] = one.serve(traffic, skip_bad, progress, keep_passes=passes_file is not None)
        data[name] = results[name].as_dict(limits, one.usd_per_s)
        if results[name].interrupted:
            break
    elapsed_s = time.perf_counter() - start
    main = results["this"]
    if figure_file is not None:
        from rackline.report.simulate_figures import run_figure
        from rackline.report.svg import write_figure

        write_figure(run_figure(results, kind), figure_file)
    if passes_file is not None:
        from rackline.report.simulate_figures import chrome_trace_of_run

        passes_file.write_text(json_text.dumps(chrome_trace_of_run(main)), encoding="utf-8")
    if series_file is not None:
        from rackline.report.simulate_figures import write_series

        write_series(main, series_file)
    if json:
        whole_data = {**data["this"], "deployment": built["this"].as_dict(), "elapsed_s": elapsed_s}
        if others:
            whole_data["compared"] = {
                name: {**found, "deployment": built[name].as_dict()} for name, found in data.items() if name != "this"
            }
        print_json(whole_data)
        return
    from rackline.report.simulate_report import comparison_report, run_report

    out = screen()
    out.print(run_report(data["this"], built["this"].title(traffic), elapsed_s=elapsed_s))
    if others:
        out.print(comparison_report(data))


def _capacity(base: _Server, traffic: Requests, asked: Any, skip_bad: bool, json: bool) -> None:
    from rackline.search.rate_capacity import rate_capacity

    built = base.build(traffic.hash_tokens)
    with requests_done("looking for the highest rate") as progress:
        found = rate_capacity(traffic, lambda faster: built.serve(faster, skip_bad, progress), asked)
    if json:
        data = found.as_dict()
        data["deployment"] = built.as_dict()
        if found.result is not None:
            data["at_capacity"] = found.result.as_dict(asked, built.usd_per_s)
        print_json(data)
        return
    from rackline.report.simulate_report import rate_capacity_report

    screen().print(rate_capacity_report(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Built:
    """A server that is ready to run."""

    deployment: Deployment
    pool: Pool
    router: str
    prefill: Handover | None
    beyond_s: float
    chips: int

    @property
    def usd_per_s(self) -> float | None:
        price = self.deployment.cluster.usd_per_chip_hour
        return None if price is None else price * self.chips / 3600.0

    def serve(
        self, requests: Requests, skip_bad: bool, progress: Progress | None, *, keep_passes: bool = False
    ) -> Result:
        from rackline.simulate import simulate as run

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
class _Server:
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

    def with_changes(self, text: str) -> _Server:
        """Another server: "policy=prefill-first,max-num-seqs=64"; a layout's own commas are written as "+"."""
        changes: dict[str, Any] = {}
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
            changes[name] = value not in ("no", "false", "0") if name == "prefix_caching" else value.replace("+", ",")
        return replace(self, **changes)

    def build(self, hash_tokens: int) -> _Built:
        """Find layout, stack and pool."""
        from rackline.parallel import Deployment, parse_layout
        from rackline.parallel import precision as find_precision
        from rackline.serving.stack import stack as find_stack
        from rackline.serving.stack import stack_of
        from rackline.simulate import Handover, kv_size, pool_of
        from rackline.simulate.router import router as find_router

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
            "block_size": whole(self.block_size, "--block-size"),
            "reserve": reserve,
            "prefix_caching": self.prefix_caching or bool(self.tier),
            "hash_tokens": hash_tokens,
            "tiers": read_tiers(self.tier, size.bytes_per_token or size.fixed_bytes),
            "swap_bytes_per_s": parse_rate(self.swap, name="--swap") if self.swap else 0.0,
        }
        prefill = None
        if front_count:
            link = parse_rate(self.kv_link, name="--kv-link")
            prefill = Handover(
                pool=pool_of(deployed(front_layout), stack, replicas=front_count, **options),
                tokens_per_s=link / (size.bytes_per_token or size.fixed_bytes),
                latency_s=self.cluster.levels[-1].latency_s,
            )
        pool = pool_of(
            deployment,
            stack,
            replicas=count,
            pool_tokens=whole(self.kv_tokens, "--kv-tokens") if self.kv_tokens else None,
            speculation=self._speculation(),
            **options,
        )
        return _Built(
            deployment=deployment,
            pool=pool,
            router=self.router,
            prefill=prefill,
            beyond_s=stack.first_token_s,
            chips=used,
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

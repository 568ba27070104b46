"""`rackline simulate`: requests in, percentiles of latency out."""

from __future__ import annotations

import json as json_text
import time
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
    read_model_and_cluster,
)
from rackline.cli.plot import PlotFile, PlotLook, read_plot
from rackline.cli.screen import print_json, requests_done, screen
from rackline.cli.server_options import ServerOptions
from rackline.cli.traffic import Traffic, read_limits
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.simulation import Requests, Result

Flag = Annotated[bool, Parameter(negative=())]


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
    time_unit: str | None = None,
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
    routing: str | None = None,
    price: MaybeValue = None,
    sets: Overrides = None,
    json: Json = False,
    plot: PlotFile = None,
    plot_kind: str | None = None,
    plot_theme: PlotLook = "auto",
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
        time_unit: of a trace whose column of times does not state it: s or ms
        skip_bad: leave out bad lines and requests that can never fit, and count them
        slo: limits for goodput, such as ttft=2s,tpot=50ms@p99
        capacity: find the highest rate that holds these limits
        compare: KEY=VALUE of another server for the same requests, such as on=dgx-h200,chips=4; may be repeated
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
        routing: how tokens spread over experts: uniform, balanced or power-law=EXPONENT; by default
            as fitted to servers of the stack
        price: price of a chip, in USD an hour
        sets: KEY=VALUE replaces a number of the model, cluster or chip; may be repeated
        json: print JSON (SI units) and nothing else
        plot_kind: cdf (tails of latency; default), timeline (latency by arrival) or occupancy (requests over time)
        trace_passes: write the passes as a Chrome trace to FILE.json
        series: write one row a request to FILE.parquet or .csv
    """
    from rackline.report.run_files import check_series_path

    drawing = read_plot(plot, "rackline.report.simulate_figures:FIGURES", plot_kind, plot_theme)
    passes_file = check_file_to_write(trace_passes, "--trace-passes")
    series_file = check_series_path(series)
    limits = read_limits(slo, "--slo") if slo is not None else None
    asked = read_limits(capacity, "--capacity") if capacity is not None else None
    found_model, cluster = read_model_and_cluster(model, on, chips=chips, price=price, sets=sets)
    base = ServerOptions(
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
        time_unit=time_unit,
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
    longest = _longest(traffic)
    built = {name: server.build(traffic.hash_tokens, longest) for name, server in {"this": base, **others}.items()}
    for name, one in built.items():
        with requests_done(f"serving {len(traffic):,} requests ({name})" if others else "serving") as progress:
            results[name] = one.serve(traffic, skip_bad, progress, keep_passes=passes_file is not None)
        data[name] = results[name].as_dict(limits, one.costs(results[name]))
        if results[name].interrupted:
            break
    elapsed_s = time.perf_counter() - start
    main = results["this"]
    if drawing is not None:
        drawing.write(results)
    if passes_file is not None:
        from rackline.report.simulate_figures import chrome_trace_of_run

        passes_file.write_text(json_text.dumps(chrome_trace_of_run(main)), encoding="utf-8")
    if series_file is not None:
        from rackline.report.run_files import write_series

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


def _longest(traffic: Requests) -> int:
    """Tokens of the longest request, prompt and answer."""
    return int((traffic.input_len + traffic.output_len).max())


def _capacity(base: ServerOptions, traffic: Requests, asked: Any, skip_bad: bool, json: bool) -> None:
    from rackline.search.rate_capacity import rate_capacity

    built = base.build(traffic.hash_tokens, _longest(traffic))
    with requests_done("looking for the highest rate") as progress:
        found = rate_capacity(traffic, lambda faster: built.serve(faster, skip_bad, progress), asked)
    if json:
        data = found.as_dict()
        data["deployment"] = built.as_dict()
        if found.result is not None:
            data["at_capacity"] = found.result.as_dict(asked, built.costs(found.result))
        print_json(data)
        return
    from rackline.report.simulate_report import rate_capacity_report

    screen().print(rate_capacity_report(found))

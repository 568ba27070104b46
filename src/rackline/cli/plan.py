"""`rackline plan`: the cheapest way to serve a model on a cluster under latency limits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rackline.api.option import latency_limit
from rackline.cli.fleet import read_traffic
from rackline.cli.launch import launch_commands, read_stack
from rackline.cli.options import (
    Json,
    MaybeValue,
    On,
    Overrides,
    Several,
    Value,
    check_overlap,
    find_calibration,
    memory_fraction,
    read_layouts,
    read_model_and_cluster,
    read_modes,
    read_precisions,
    read_routing,
    tokens,
)
from rackline.cli.plot import PlotFile, PlotLook, read_plot
from rackline.cli.pools import PrefillOptions, read_prefill
from rackline.cli.screen import print_json, progress, screen
from rackline.cli.speculate import read_speculation
from rackline.cli.what_if import read_what_if, show_what_if
from rackline.units import parse_fraction

if TYPE_CHECKING:
    from rackline.search.plan import Plan


def plan(
    model: str,
    /,
    *,
    on: On,
    input_len: Annotated[Value, Parameter(name="--input")],
    output_len: Annotated[Value, Parameter(name="--output")],
    tpot: MaybeValue = None,
    ttft: MaybeValue = None,
    chips: MaybeValue = None,
    precision: Several = None,
    mode: Several = None,
    layout: str | None = None,
    calibration: str = "auto",
    memory: Annotated[Value, Parameter(name="--memory-fraction")] = "0.9",
    cache_hit: Value = "0",
    routing: str | None = None,
    price: MaybeValue = None,
    serving: str = "both",
    prefill_on: str | None = None,
    prefill_chips: MaybeValue = None,
    prefill_layout: str | None = None,
    traffic: MaybeValue = None,
    peak_over_mean: MaybeValue = None,
    offline: MaybeValue = None,
    provider: MaybeValue = None,
    launch: str | None = None,
    speculate: str | None = None,
    attention_ffn: Annotated[bool, Parameter(negative=())] = False,
    what_if: str | None = None,
    sets: Overrides = None,
    json: Json = False,
    plot: PlotFile = None,
    plot_theme: PlotLook = "auto",
) -> None:
    """The cheapest way to serve a model on a cluster under latency limits.

    Looks at every layout × precision × scheduler × batch that fits, serves the best with requests that arrive at
    random and lowers their rate until the limits hold, and explains it: what binds, what it costs, how far it is from
    the floors, what else there is, and what was rejected by the least.

    Args:
        model: catalogue name, Hugging Face id, TOML file or config.json
        on: cluster: catalogue name or TOML file
        input_len: prompt tokens of a request, such as 4k
        output_len: generated tokens of a request, at least 2
        tpot: largest time per output token: of the mean, such as 30ms, or of a percentile, such as 50ms@p90
        ttft: largest time to first token: of the mean, such as 2s, or of a percentile, such as 2s@p99
        chips: chips to use; the cluster's own number by default
        precision: data types: native, bf16, fp8, fp4, mxfp4, int8, int4, or in parts such as fp8,kv=bf16; may be
            repeated; all that the chip supports by default
        mode: scheduler: chunked[=TOKENS], prefill-first[=TOKENS] or decode-first[=TOKENS], each also with ,overlap; may
            be repeated
        layout: parts that are fixed, such as tp=8 or attention_dp=8,ep=8; the others stay free
        calibration: how far kernels fall short of the peaks: auto (the stack measured most on the chip), trtllm, vllm,
            sglang, generic (all stacks), unit (ideal roofline) or a TOML file
        memory: share of HBM that the server may use
        cache_hit: share of the prompt whose KV cache is there already, such as 50%
        routing: how tokens spread over experts: uniform, balanced or power-law=EXPONENT; by default
            as fitted to servers of the stack
        price: price of a chip, in USD an hour
        serving: both (one engine that prefills and decodes, and separate pools for the two) or aggregated (one engine)
        prefill_on: another cluster for the prefill pool, such as h100-96; chips of the same cluster by default
        prefill_chips: chips of that cluster to use; its own number by default
        prefill_layout: parts of the prefill pool's layout that are fixed, such as attention_dp=32,ep=32
        traffic: output tokens/s that users ask for, such as 50M: how many copies, racks, watts and dollars that takes
        peak_over_mean: busiest hour of the traffic over its mean, such as 1.8
        offline: share of the traffic that may wait for quiet hours, such as 30%
        provider: output tokens/s of a whole provider, to compare with, such as 400M
        launch: print the command lines of the answer for auto (the calibration's stack), vllm, sglang or trtllm
        speculate: when speculative decoding pays on the chosen decode replica: usual (1 to 4 drafts, acceptance as
            usually measured) or drafts with the tokens that a step yields, such as 1,3=2.9
        attention_ffn: decode with attention and experts on chips of their own
        what_if: one quantity varied and the optimum at each value, such as scale_up_size=8,72,144 or
            hbm_bandwidth=4TB/s:20TB/s:5; also scale_up_bandwidth, scale_out_bandwidth, hbm_capacity,
            total_over_active, kv_bytes_per_token, or any key of --set
        sets: KEY=VALUE replaces a number of the model, cluster or chip, such as hbm_bytes_per_s=20TB/s; may be
            repeated
        json: print JSON (SI units) and nothing else
    """
    figures = "FIGURES" if what_if is None else "WHAT_IF_FIGURES"
    drawing = read_plot(plot, f"rackline.report.plan_figure:{figures}", look=plot_theme)
    fraction = memory_fraction(memory)
    request = (tokens(input_len, "--input"), tokens(output_len, "--output", 2.0))
    hit = parse_fraction(cache_hit, name="--cache-hit", maximum=0.9999)
    limits = tuple(
        (None, None) if text is None else latency_limit(text, name)
        for text, name in ((tpot, "--tpot"), (ttft, "--ttft"))
    )
    demand = read_traffic(traffic, peak_over_mean, offline, provider)
    stack = read_stack(launch)
    drafts = read_speculation(speculate)
    sweep = read_what_if(what_if, plot, traffic, launch)

    def answer_with(more: tuple[str, ...] = ()) -> tuple[Plan, PrefillOptions]:
        """The plan with further settings."""
        given = [*(sets or ()), *more]
        found_model, cluster = read_model_and_cluster(model, on, chips=chips, price=price, sets=given)

        from rackline.search import Constraints
        from rackline.search import plan as search_plan
        from rackline.serving.workload import Workload

        modes = read_modes(mode, found_model)
        layouts = read_layouts(layout, found_model, cluster)
        check_overlap(modes, layouts, cluster)
        pool = read_prefill(serving, prefill_on, prefill_chips, prefill_layout, found_model, cluster, calibration)
        found = search_plan(
            found_model,
            cluster,
            Workload(input_len=request[0], output_len=request[1], cache_hit=hit),
            calibration=find_calibration(calibration, cluster.chip),
            constraints=Constraints(
                tpot_s=limits[0][0],
                tpot_percentile=limits[0][1],
                ttft_s=limits[1][0],
                ttft_percentile=limits[1][1],
                memory_fraction=fraction,
            ),
            precisions=read_precisions(precision, found_model, cluster),
            modes=modes,
            layouts=layouts,
            routing=read_routing(routing),
            pools=pool.wanted,
            prefill_on=pool.cluster,
            prefill_layouts=pool.layouts,
            prefill_calibration=pool.calibration,
        )
        return found, pool

    if sweep is not None:
        base, _ = read_model_and_cluster(model, on, chips=chips, price=price, sets=sets)
        show_what_if(sweep, base, lambda text: answer_with((text,))[0], json=json, drawing=drawing)
        return
    start = time.perf_counter()
    with progress("looking at layouts, precisions, modes and batches; serving the best"):
        answer, pool = answer_with()
    elapsed_s = time.perf_counter() - start
    needed = None
    if demand is not None:
        from rackline.search.fleet import plan_fleet

        needed = plan_fleet(demand, answer, pool.cluster)
    drafted = None
    if drafts is not None:
        from rackline.search.speculation import plan_speculation

        drafted = plan_speculation(answer, drafts or None)
    split = None
    if attention_ffn:
        from rackline.search.attention_ffn import plan_split

        split = plan_split(answer)
    commands = launch_commands(answer, model, stack) if stack else None
    if drawing is not None:
        drawing.write(answer)
    from rackline.validation.intervals import as_dict, of_candidate

    name = answer.calibration.name
    if json:
        data = answer.as_dict()
        for shown, found in ((data["best"], answer.best), *zip(data["pareto"], answer.pareto, strict=True)):
            if found is not None:
                shown["intervals"] = as_dict(of_candidate(found, name))
        if demand is not None:
            data["fleet"] = needed.as_dict() if needed else None
        if drafted is not None:
            data["speculation"] = [row.as_dict() for row in drafted]
        if attention_ffn:
            data["attention_ffn"] = split.as_dict() if split else None
        if commands is not None:
            data["launch"] = [command.as_dict() for command in commands]
        print_json(data)
        return
    known = of_candidate(answer.best, name) if answer.best is not None else []
    from rackline.report.plan_report import plan_report

    out = screen()
    out.print(plan_report(answer, width=out.width, elapsed_s=elapsed_s))
    if known:
        from rackline.report.wording import interval_text

        parts = [
            f"{_INTERVAL_NAMES[i.metric]} {interval_text(i.metric, i.low, i.high)}"
            for i in known
            if i.metric in _INTERVAL_NAMES
        ]
        out.print(
            f"nine of ten measured servers ({known[0].group}, {known[0].num_cases} cases) lay within: "
            f"{'; '.join(parts)}",
            style="dim",
        )
    if drafted:
        from rackline.report.speculation_report import speculation_report

        out.print()
        out.print(speculation_report(drafted, limits[0][0]))
    if attention_ffn:
        from rackline.report.attention_ffn_report import attention_ffn_report

        out.print()
        out.print(attention_ffn_report(answer, split))
    if needed is not None:
        from rackline.report.fleet_report import fleet_report

        out.print()
        out.print(fleet_report(needed))
    if commands:
        from rackline.report.launch_report import launch_report

        out.print()
        out.print(launch_report(commands))


_INTERVAL_NAMES = {
    "tpot_s": "time per output token",
    "ttft_s": "time to first token",
    "output_tokens_per_s_per_chip": "output tokens/s/chip",
    "usd_per_mtok_input": "USD per million input tokens",
    "usd_per_mtok_output": "output tokens",
}

"""`simulate`: requests in, latency percentiles out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil, isinf, log2
from typing import Any, Literal, TypeAlias

from rackline.api.agents import serve_agents
from rackline.api.answer import Answer, SideFile, Watch, asks
from rackline.api.model_options import media_of, media_tokens, with_adapter, with_draft, with_media
from rackline.api.planned_server import planned_question
from rackline.api.question import Option
from rackline.api.rates import classes_of
from rackline.api.resolve import check_context, named, window_of
from rackline.api.scaling import ScaledRuns, scaled_runs
from rackline.api.server import (
    ASKED,
    RunShown,
    RunsShown,
    Simulated,
    other_server,
    server_of,
    with_tiers,
)
from rackline.api.simulate_options import SimulateQuestion
from rackline.api.traffic import (
    Use,
    encoded_over,
    limits_lines,
    limits_of,
    note_early_ends,
    requests_of,
    use_lines,
    with_use,
)
from rackline.api.verbs import Entry
from rackline.errors import InputError, require
from rackline.files import write_text
from rackline.late import late
from rackline.units import format_seconds, parse_per_second

with late:
    from rackline import arch, hardware, simulation
    from rackline.bands import bands
    from rackline.display import figure
    from rackline.report import agents_report, choice_report, exports, scaled_report, simulate_figures, simulate_report
    from rackline.search import agent_runs, rate_capacity, simulated_server
    from rackline.simulation import workloads


_FIRST_REQUESTS = 2000  # a p99 of independent latencies takes about 500
_MOST_REQUESTS = 64_000  # seconds to a minute of work
_REQUESTS_A_USER = 10  # so that leaving out the first and last of each leaves most

_TIMES: tuple[tuple[Literal["ttft_s", "tpot_s"], str], ...] = (("ttft_s", "TTFT"), ("tpot_s", "TPOT"))


Answered: TypeAlias = (
    "Answer[SimulateQuestion, Simulated | simulated_server.Sustained | ScaledRuns | agent_runs.AgentRuns]"
)


def _text(answer: Answered, width: int) -> Iterable[Any]:
    from rich.text import Text

    found = answer.result
    if isinstance(found, agent_runs.AgentRuns):
        yield from agents_report.report(found, elapsed_s=answer.elapsed_s)
        return
    if isinstance(found, ScaledRuns):
        yield from limits_lines(found.use)
        yield from scaled_report.report(found.fleet, elapsed_s=answer.elapsed_s)
        yield from use_lines(found.use)
        return
    if isinstance(found, simulated_server.Sustained):
        yield simulate_report.rate_capacity_report(found.capacity)
        if found.at_capacity is not None:
            yield from simulate_report.frontend_lines(found.at_capacity.summary)
        return
    data = {name: run.summary for name, run in found.runs.items()}
    yield from limits_lines(found.use)
    yield simulate_report.run_report(data[ASKED], found.run.server.title(found.requests), elapsed_s=answer.elapsed_s)
    yield from use_lines(found.use)
    yield from _energy_text(found.run)
    line = _interval(answer)
    if line:
        yield Text(line, style="dim")
    if len(data) > 1 or answer.question.compare:
        yield simulate_report.comparison_report(data)


def _energy_text(run: simulated_server.Run) -> Iterable[Any]:
    """Watts of a chip and of all machines, and joules."""
    from rich.text import Text

    energy = run.energy
    if energy is not None:
        yield Text(f"power: {choice_report.energy_text(energy)}")
        if energy.power.basis == "kernels":
            band = bands.joules_of(run.server.deployment, energy.joules_per_output_token)
            yield Text(bands.joules_line([band]), style="dim")


def _interval(answer: Answered) -> str:
    """What measured servers of this kind deviate by, of the means."""
    if not isinstance(answer.result, Simulated):
        return ""
    server, data = answer.result.run.server, answer.result.run.summary
    means = {"tpot_s": data["tpot_s"]["mean"], "ttft_s": data["ttft_s"]["mean"]}
    return bands.interval_line(bands.of_deployment(server.deployment, means, pools=server.prefill is not None))


def _data(answer: Answered) -> RunsShown | simulated_server.Sustained | ScaledRuns | agent_runs.AgentRuns:
    found = answer.result
    if not isinstance(found, Simulated):
        return found
    others = {name: RunShown(run=run) for name, run in found.runs.items() if name != ASKED}
    return RunsShown(
        run=found.run, elapsed_s=answer.elapsed_s, compared=others if answer.question.compare else None, use=found.use
    )


def _summary(answer: Answered) -> str:
    found = answer.result
    if isinstance(found, agent_runs.AgentRuns):
        return agents_report.summary(found)
    if isinstance(found, ScaledRuns):
        return scaled_report.summary(found.fleet)
    if isinstance(found, simulated_server.Sustained):
        return f"{found.capacity.rate_per_s:.3g} requests/s meet the limits; {found.server.title(found.requests)}"
    data = found.run.summary
    times = ", ".join(
        f"{name} p50 {format_seconds(data[key]['p50'])}, p99 {format_seconds(data[key]['p99'])}" for key, name in _TIMES
    )
    return (
        f"{data['finished']:,} of {data['requests']:,} requests, {times}, "
        f"{data['output_tokens_per_s']:,.0f} output tokens/s;\n  {found.run.server.title(found.requests)}"
    )


def _rows(answer: Answered) -> Any:
    found = answer.result
    if isinstance(found, agent_runs.AgentRuns):
        return agents_report.rows(found)
    if isinstance(found, ScaledRuns):
        return scaled_report.window_rows(found.fleet)
    return (
        found.capacity.tried if isinstance(found, simulated_server.Sustained) else exports.series_of(found.run.result)
    )


def _results(answer: Answered) -> dict[str, simulation.Result]:
    if isinstance(answer.result, simulated_server.Sustained):
        raise InputError(what="plot", given="a highest rate", allowed="only without `capacity`")
    if isinstance(answer.result, agent_runs.AgentRuns):
        raise InputError(what="plot_kind", given="one of a steady stream", allowed="concurrency, for `agents`")
    if isinstance(answer.result, ScaledRuns):
        raise InputError(what="plot_kind", given="one of a steady stream", allowed="over-time, for a `load`")
    return {name: run.result for name, run in answer.result.runs.items()}


def _refuse(question: SimulateQuestion, outputs: frozenset[str]) -> None:
    no_files = ("trace_passes", "series")
    for option, names in (("capacity", ("plot", *no_files)), ("load", no_files), ("agents", no_files)):
        for name in names:
            require(
                name not in outputs or getattr(question, option) is None,
                what=name,
                given="a file",
                allowed=f"only without `{option}`",
            )


def _classes_figure(answer: Answered) -> figure.Figure:
    """Each class beside the others: over time under the first policy, or its percentiles."""
    found = answer.result
    if isinstance(found, ScaledRuns):
        fleet = found.fleet
        windows = {name: fleet.first.run.of(mine).windows(fleet.window_s, None)
                   for name, mine in _masks(fleet.first.run.requests).items()}  # fmt: skip
        return simulate_figures.classes_figure(windows)
    run = next(iter(_results(answer).values()))
    each = {name: run.of(mine) for name, mine in _masks(run.requests).items()}
    return simulate_figures.percentiles_figure(each, "classes")


def _masks(requests: simulation.Requests) -> dict[str, Any]:
    """The requests of each class that has some.

    Raises:
        InputError: there are no classes.
    """
    if requests.classes is None:
        raise InputError(what="plot_kind", given="classes", allowed="only with `classes`")
    masks = {one.name: requests.classes == place for place, one in enumerate(requests.kinds)}
    return {name: mine for name, mine in masks.items() if mine.any()}


def _over_time_figure(answer: Answered) -> figure.Figure:
    found = answer.result
    if not isinstance(found, ScaledRuns):
        raise InputError(what="plot_kind", given="over-time", allowed="only with `load`")
    return simulate_figures.over_time_figure(
        [(one.outcome.policy, one.windows) for one in found.fleet.ran], found.fleet.slo.limits()
    )


def _concurrency_figure(answer: Answered) -> figure.Figure:
    found = answer.result
    if not isinstance(found, agent_runs.AgentRuns):
        raise InputError(what="plot_kind", given="concurrency", allowed="only with `agents`")
    return simulate_figures.concurrency_figure(agents_report.points(found))


def _usual_figure(answer: Answered) -> figure.Figure:
    found = answer.result
    if isinstance(found, agent_runs.AgentRuns):
        return _concurrency_figure(answer)
    return (
        _over_time_figure(answer) if isinstance(found, ScaledRuns) else simulate_figures.tails_figure(_results(answer))
    )


@asks(
    SimulateQuestion,
    text=_text,
    summary=_summary,
    rows=_rows,
    data=_data,
    figures={
        "cdf": _usual_figure,
        "timeline": lambda answer: simulate_figures.timeline_figure(_results(answer)),
        "occupancy": lambda answer: simulate_figures.occupancy_figure(_results(answer)),
        "served": lambda answer: simulate_figures.served_figure(_results(answer)),
        "percentiles": lambda answer: simulate_figures.percentiles_figure(_results(answer)),
        "over-time": _over_time_figure,
        "concurrency": _concurrency_figure,
        "classes": _classes_figure,
    },
    files={
        "trace_passes": SideFile(
            option=Option(kind="text", help="write the passes as a Chrome trace to FILE.json"),
            write=lambda answer, path, _: write_text(
                path, json.dumps(exports.chrome_trace_of_run(_results(answer)[ASKED])), what="trace_passes"
            ),
            needs={"keep_passes": True},
        ),
        "series": SideFile(
            option=Option(kind="text", help="write one row per request to FILE.parquet or .csv"),
            write=lambda answer, path, _: exports.write_series(_results(answer)[ASKED], path),
            check=lambda text, name: exports.check_series_path(text),
        ),
    },
    interval=_interval,
    refuse=_refuse,
    simulates=True,
    entry=Entry(
        group="Understand",
        place=2,
        line="Latency percentiles under recorded or synthetic traffic.",
        usual=(
            "rate",
            "users",
            "trace",
            "requests",
            "input",
            "output",
            "slo",
            "capacity",
            "layout",
            "chips",
            "precision",
        ),
        request={
            "model": "llama-3.1-8b",
            "on": "dgx-h100",
            "chips": 1,
            "rate": "5",
            "input": "1k",
            "output": 200,
            "requests": 500,
        },
        is_long=True,
        sweep_s=3.0,
        view={
            "id": "simulate",
            "place": 7,
            "title": "Simulate",
            "question": "What do users see under real traffic?",
            "claims": ["C26", "C27", "C31"],
            "figures": ["percentiles", "served", "cdf"],
            "fields": {
                "model": "llama-3.1-8b",
                "on": "dgx-h100",
                "chips": "2",
                "rate": "20",
                "requests": "600",
                "input": "1k",
                "output": "200",
                "lengths": "lognormal",
                "policy": "chunked",
                "compare": "policy=prefill-first",
            },
            "suggested": {"policy": "policies", "compare": "others"},
            "stop": "rate",
            "stops": ["5", "20", "30"],
        },
        examples="""
    rackline simulate llama-3.1-70b --on dgx-h100 --layout tp=4 \\
      --rate 4 --input 2k --output 256 --slo ttft=2s,tpot=50ms@p99
    rackline simulate deepseek-v3 --on dgx-h200 --layout tp=8,ep=8 \\
      --trace mooncake_conversation_trace.jsonl --prefix-caching
    rackline simulate llama-3.1-8b --on dgx-h100 --chips 1 \\
      --rate 5 --input 1k --output 200 --capacity ttft=1s,tpot=30ms@p99
    rackline simulate llama-3.1-8b --on dgx-h100 --chips 2 --users 64 \\
      --input 1k --output 200 --compare policy=prefill-first
    rackline simulate llama-3.1-8b --on dgx-h100 --chips 8 --layout tp=1 \\
      --load day --rate 20 --autoscale hpa --autoscale keda
    rackline simulate glm-5.2 --on dgx-b300 --layout tp=8 --precision fp4,kv=fp8 \\
      --agents agentx --longest-pause 5min --concurrency 4,8,16,32
    rackline simulate llama-3.1-8b --on dgx-h100 --chips 2 --layout tp=1 \\
      --rate 20 --classes classes.toml --router llm-d --admit queue=50
""",
    ),
)
def simulate(
    question: SimulateQuestion, watch: Watch
) -> Simulated | simulated_server.Sustained | ScaledRuns | agent_runs.AgentRuns:
    """Simulate a deployment serving recorded or synthetic traffic, pass by pass, and print latency percentiles.

    Traffic is one of a trace, a rate and a number of users. An interruption gives what was simulated so far.

    Example:
        >>> import rackline as rl
        >>> found = rl.simulate(
        ...     "llama-3.1-8b", on="dgx-h100", chips=1, rate=5, requests=200, input="1k", output=100
        ... )
        >>> found.to_dict()["finished"]
        200
    """
    if question.plan is not None:
        question = planned_question(question, watch)
    if question.agents is not None:
        return serve_agents(question, watch)
    if question.load is not None:
        return scaled_runs(question, watch)
    question = with_tiers(question, watch)
    use: Use | None = None
    if question.use is not None:
        question, use = with_use(question)
    limits = limits_of(question.slo, "slo") if question.slo is not None else None
    asked = limits_of(question.capacity, "capacity") if question.capacity is not None else None
    require(
        asked is None or not any(one.offline for one in classes_of(question)),
        what="capacity",
        given=question.capacity,
        allowed="only without an offline class",
    )
    model, cluster = named(question, watch)
    media = media_of(question, watch)
    traffic = requests_of(question, window_of(model), media_tokens(media), _first_requests(question))
    note_early_ends(question, model, media_tokens(media), watch)
    model = with_media(model, media, encoded_over(question, traffic, media_tokens(media)))
    model = with_adapter(with_draft(model, question, question.speculate, watch), question, watch)
    others = {text: other_server(question, cluster, text) for text in question.compare}
    desk = _Desk(question=question, model=model, media_tokens=media_tokens(media), watch=watch)
    asked_for = {ASKED: (question, cluster), **others}
    stage = desk.stage(traffic, asked_for)
    if asked is not None:
        return _sustained(desk, stage, asked)
    run = desk.run(stage, ASKED, limits)
    while desk.goes_on(run) and (longer := desk.longer(stage, asked_for, run.result.half_width(limits))):
        stage = longer
        run = desk.run(stage, ASKED, limits)
    runs = {ASKED: run}
    desk.says_what_is_unknown(run)
    for name in stage.servers:
        if not any(run.result.interrupted for run in runs.values()) and name != ASKED:
            runs[name] = desk.run(stage, name, limits)
    return Simulated(requests=stage.requests, runs=runs, use=use)


def _first_requests(question: SimulateQuestion) -> int:
    """The synthetic requests of the first run: a day where there is a daily cycle."""
    if question.diurnal_amplitude and question.rate is not None and str(question.rate) != "inf":
        return min(ceil(float(parse_per_second(str(question.rate), name="rate")) * workloads.DAY_S), _MOST_REQUESTS)
    return min(max(_FIRST_REQUESTS, _REQUESTS_A_USER * (question.users or 0)), _MOST_REQUESTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """Requests, and the servers that are to serve them, by name."""

    requests: simulation.Requests
    servers: Mapping[str, simulated_server.Server]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Desk:
    """Runs of one question, of growing length until its percentiles are known."""

    question: SimulateQuestion
    model: arch.AnyModel
    media_tokens: int
    watch: Watch

    def stage(
        self, traffic: simulation.Requests, asked_for: Mapping[str, tuple[SimulateQuestion, hardware.Cluster]]
    ) -> _Stage:
        """Servers that hold the longest request, and the requests with their adapters."""
        traffic = _with_adapters(self.question, traffic, self.model)
        longest = int((traffic.input_len + traffic.output_len).max())
        check_context(self.model, float(longest), self.watch)
        servers = {
            name: server_of(one, self.model, rack, traffic.hash_tokens, longest, self.watch)
            for name, (one, rack) in asked_for.items()
        }
        return _Stage(requests=traffic, servers=servers)

    def run(self, stage: _Stage, name: str, slo: simulation.Slo | None) -> simulated_server.Run:
        """Serve the requests."""
        what = f"serving {len(stage.requests):,} requests" + (f" ({name})" if len(stage.servers) > 1 else "")
        server = stage.servers[name]
        with self.watch.serving(what) as progress:
            result = server.serve(
                stage.requests, self.question.skip_bad, progress, keep_passes=self.question.keep_passes
            )
        return simulated_server.Run(server=server, result=result, slo=slo)

    def goes_on(self, run: simulated_server.Run) -> bool:
        """Whether a run of twice the length is due."""
        result = run.result
        open_end = self.question.requests is None and result.requests.process is not None and not result.interrupted
        wide = open_end and result.overload() is None
        return wide and result.half_width(run.slo) > self.question.percentile_precision

    def longer(
        self, stage: _Stage, asked_for: Mapping[str, tuple[SimulateQuestion, hardware.Cluster]], half_width: float
    ) -> _Stage | None:
        """As many requests as are likely to do, as widths go with 1 / √n; None beyond the most, or where the longest of
        them does not fit.

        Args:
            half_width: that these requests gave [1].
        """
        factor = 2.0 if isinf(half_width) else (half_width / self.question.percentile_precision) ** 2
        number = min(len(stage.requests) * 2 ** min(max(ceil(log2(factor)), 1), 3), _MOST_REQUESTS)
        if number <= len(stage.requests):
            return None
        try:
            traffic = requests_of(self.question, window_of(self.model), self.media_tokens, number)
            return self.stage(traffic, asked_for)
        except InputError:
            return None

    def says_what_is_unknown(self, run: simulated_server.Run) -> None:
        """Warn of percentiles that a run of free length did not settle."""
        if self.goes_on(run):
            width, asked = run.result.half_width(run.slo), self.question.percentile_precision
            known = "cannot be bounded" if isinf(width) else f"are known to ±{100.0 * width:.0f} %"
            self.watch.warn(
                f"after {len(run.result.requests):,} requests the percentiles that were asked for {known}, not to "
                f"±{100.0 * asked:g} %; see their intervals, or simulate more (`requests`)"
            )


def _with_adapters(
    question: SimulateQuestion, traffic: simulation.Requests, model: arch.AnyModel
) -> simulation.Requests:
    """The requests with the adapters that they choose.

    Raises:
        InputError: several adapters and a cache of prefixes, which those of different adapters do not share.
    """
    adapter = model.adapter if isinstance(model, arch.Model) else None
    if adapter is not None and adapter.number > 1 and (question.prefix_caching or question.tier or question.cache_ttl):
        raise InputError(what="adapters", given=adapter.number, allowed="1 with a cache of prefixes")
    return workloads.with_chosen_adapters(traffic, adapter, question.seed)


def _sustained(desk: _Desk, stage: _Stage, asked: simulation.Slo) -> simulated_server.Sustained:
    question, watch = desk.question, desk.watch
    asked_for = {ASKED: (question, stage.servers[ASKED].deployment.cluster)}
    found: rate_capacity.RateCapacity | None = None
    while True:
        server, traffic = stage.servers[ASKED], stage.requests
        with watch.serving(f"searching for the highest rate with {len(traffic):,} requests") as progress:
            found = rate_capacity.rate_capacity(
                traffic,
                partial(server.serve, skip_bad=question.skip_bad, progress=progress),
                asked,
                near_per_s=found.rate_per_s if found is not None else None,
            )
        width = found.half_width
        wanted = question.percentile_precision
        bounded = found.rate_per_s > 0 and found.broken_per_s is not None  # more requests move no end that is none
        if not (question.requests is None and bounded) or traffic.process is None or width <= wanted:
            break
        longer = desk.longer(stage, asked_for, width)
        if longer is None:
            known = "cannot be bounded" if isinf(width) else f"is known to ±{100.0 * width:.0f} %"
            watch.warn(
                f"with {len(traffic):,} requests the capacity {known}, not to ±{100.0 * wanted:g} %; see its interval, "
                "or simulate more (`requests`)"
            )
            break
        stage = longer
    run = None if found.result is None else simulated_server.Run(server=server, result=found.result, slo=asked)
    return simulated_server.Sustained(capacity=found, at_capacity=run, server=server, requests=traffic)

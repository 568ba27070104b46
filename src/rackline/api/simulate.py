"""`simulate`: requests in, latency percentiles out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rackline.api.adapter import with_adapter
from rackline.api.answer import Answer, SideFile, asks
from rackline.api.draft import with_draft
from rackline.api.media import media_of, media_tokens, with_media
from rackline.api.option import Option, count, texts
from rackline.api.resolve import check_context, named
from rackline.api.server import Server, other_server, server_of
from rackline.api.simulate_question import SimulateQuestion
from rackline.api.traffic import encoded_over, limits_of, requests_of
from rackline.api.uses import Use, use_lines, with_use
from rackline.api.watch import Watch
from rackline.errors import InputError
from rackline.files import write_text

_TIMES: tuple[tuple[Literal["ttft_s", "tpot_s"], str], ...] = (("ttft_s", "TTFT"), ("tpot_s", "TPOT"))

if TYPE_CHECKING:
    from rackline.arch import AnyModel
    from rackline.report.figure import Figure
    from rackline.search.choice import Energy
    from rackline.search.rate_capacity import RateCapacity
    from rackline.simulation import Requests, Result, Slo
    from rackline.simulation.metrics import RunData

ASKED = "this"  # the name of the server that was asked for, beside those it is compared with


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
class Simulated:
    """Runs on the same requests.

    Args:
        requests: that were served.
        runs: by name: the server that was asked for, then those it is compared with.
        use: what it is for, with the lengths and limits that this gave; None where none was named.
    """

    requests: Requests
    runs: Mapping[str, Run]
    use: Use | None = None

    @property
    def run(self) -> Run:
        """The run of the server that was asked for."""
        return self.runs[ASKED]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """The highest rate that a server holds.

    Args:
        capacity: the rate and those that were tried.
        at_capacity: the run at that rate, if any held.
        server: that served.
        requests: that were served, at other rates.
    """

    capacity: RateCapacity
    at_capacity: Run | None
    server: Server
    requests: Requests


if TYPE_CHECKING:
    Answered = Answer[SimulateQuestion, Simulated | Sustained]


def _text(answer: Answered, width: int) -> Iterable[Any]:
    from rich.text import Text

    from rackline.report.simulate_report import comparison_report, rate_capacity_report, run_report

    found = answer.result
    if isinstance(found, Sustained):
        yield rate_capacity_report(found.capacity)
        return
    data = {name: run.summary for name, run in found.runs.items()}
    yield run_report(data[ASKED], found.run.server.title(found.requests), elapsed_s=answer.elapsed_s)
    yield from use_lines(found.use)
    yield from _energy_text(found.run)
    line = _interval(answer)
    if line:
        yield Text(line, style="dim")
    if len(data) > 1 or answer.question.compare:
        yield comparison_report(data)


def _energy_text(run: Run) -> Iterable[Any]:
    """Watts of a chip and of all machines, and joules."""
    from rich.text import Text

    from rackline.report.choice_report import energy_text

    energy = run.energy
    if energy is not None:
        yield Text(f"power: {energy_text(energy)}")
        if energy.power.basis == "kernels":
            from rackline.validation.intervals import joules_line, joules_of

            band = joules_of(run.server.deployment, energy.joules_per_output_token)
            yield Text(joules_line([band]), style="dim")


def _interval(answer: Answered) -> str:
    """What measured servers of this kind deviate by, of the means."""
    from rackline.validation.intervals import interval_line, of_deployment

    if isinstance(answer.result, Sustained):
        return ""
    server, data = answer.result.run.server, answer.result.run.summary
    means = {"tpot_s": data["tpot_s"]["mean"], "ttft_s": data["ttft_s"]["mean"]}
    return interval_line(of_deployment(server.deployment, means, pools=server.prefill is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShown:
    """A run with its server."""

    json_keys: ClassVar = ("*run", "deployment=run.server")

    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsShown:
    """The run of the server that was asked for, and those it is compared with.

    Args:
        elapsed_s: how long they took [s].
        use: what they are for; None where no use was named.
    """

    json_keys: ClassVar = ("*run", "deployment=run.server", "elapsed_s", "compared", "use")

    run: Run
    elapsed_s: float
    compared: dict[str, RunShown] | None
    use: Use | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityShown:
    """The highest rate that a server holds, and the run at that rate; None where no rate holds."""

    json_keys: ClassVar = ("*found.capacity", "deployment=found.server", "at_capacity=found.at_capacity")

    found: Sustained


def _data(answer: Answered) -> RunsShown | CapacityShown:
    found = answer.result
    if isinstance(found, Sustained):
        return CapacityShown(found=found)
    others = {name: RunShown(run=run) for name, run in found.runs.items() if name != ASKED}
    compared = others if answer.question.compare else None
    return RunsShown(run=found.run, elapsed_s=answer.elapsed_s, compared=compared, use=found.use)


def _summary(answer: Answered) -> str:
    from rackline.units import format_seconds

    found = answer.result
    if isinstance(found, Sustained):
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
    from rackline.report.run_files import series_of

    found = answer.result
    return found.capacity.tried if isinstance(found, Sustained) else series_of(found.run.result)


def _results(answer: Answered) -> dict[str, Result]:
    if isinstance(answer.result, Sustained):
        raise InputError(what="plot", given="a highest rate", allowed="only without `capacity`")
    return {name: run.result for name, run in answer.result.runs.items()}


def _tails(answer: Answered) -> Figure:
    from rackline.report.simulate_figures import tails_figure

    return tails_figure(_results(answer))


def _timeline(answer: Answered) -> Figure:
    from rackline.report.simulate_figures import timeline_figure

    return timeline_figure(_results(answer))


def _occupancy(answer: Answered) -> Figure:
    from rackline.report.simulate_figures import occupancy_figure

    return occupancy_figure(_results(answer))


def _percentiles(answer: Answered) -> Figure:
    from rackline.report.percentiles_figure import percentiles_figure

    return percentiles_figure(_results(answer))


def _served(answer: Answered) -> Figure:
    from rackline.report.served_figure import served_figure

    return served_figure(_results(answer))


def _write_passes(answer: Answered, path: Path) -> None:
    from rackline.report.simulate_figures import chrome_trace_of_run

    write_text(path, json.dumps(chrome_trace_of_run(_results(answer)[ASKED])), what="trace_passes")


def _check_series(text: str, name: str) -> Path:
    from rackline.report.run_files import check_series_path

    return check_series_path(text)


def _write_series(answer: Answered, path: Path) -> None:
    from rackline.report.run_files import write_series

    write_series(_results(answer)[ASKED], path)


_FILES = {
    "trace_passes": SideFile(
        option=Option(kind="text", help="write the passes as a Chrome trace to FILE.json"),
        write=_write_passes,
        needs={"keep_passes": True},
    ),
    "series": SideFile(
        option=Option(kind="text", help="write one row per request to FILE.parquet or .csv"),
        write=_write_series,
        check=_check_series,
    ),
}


def _refuse(question: SimulateQuestion, outputs: frozenset[str]) -> None:
    if question.capacity is not None:
        for name in ("plot", "trace_passes", "series"):
            if name in outputs:
                raise InputError(what=name, given="a file", allowed="only without `capacity`")


@asks(
    SimulateQuestion,
    text=_text,
    summary=_summary,
    rows=_rows,
    data=_data,
    figures={
        "cdf": _tails,
        "timeline": _timeline,
        "occupancy": _occupancy,
        "served": _served,
        "percentiles": _percentiles,
    },
    files=_FILES,
    interval=_interval,
    refuse=_refuse,
)
def simulate(question: SimulateQuestion, watch: Watch) -> Simulated | Sustained:
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
    use: Use | None = None
    if question.use is not None:
        question, use = with_use(question)
    limits = limits_of(question.slo, "slo") if question.slo is not None else None
    asked = limits_of(question.capacity, "capacity") if question.capacity is not None else None
    model, cluster = named(question, watch)
    media = media_of(question, watch)
    traffic = requests_of(question, media_tokens(media))
    model = with_media(model, media, encoded_over(question, traffic, media_tokens(media)))
    model = with_adapter(with_draft(model, question, question.speculate, watch), question, watch)
    traffic = _with_adapters(question, traffic, model)
    longest = int((traffic.input_len + traffic.output_len).max())
    check_context(model, float(longest), watch)
    asked_for = {ASKED: (question, cluster)}
    for text in texts(question.compare):
        asked_for[text] = other_server(question, cluster, text)
    if asked is not None:
        if question.compare:
            raise InputError(what="compare", given=texts(question.compare)[0], allowed="only without `capacity`")
        server = server_of(question, model, cluster, traffic.hash_tokens, longest, watch)
        return _sustained(server, traffic, asked, question.skip_bad, watch)
    servers = {
        name: server_of(one, model, rack, traffic.hash_tokens, longest, watch)
        for name, (one, rack) in asked_for.items()
    }
    runs: dict[str, Run] = {}
    for name, server in servers.items():
        what = f"serving {len(traffic):,} requests ({name})" if len(servers) > 1 else "serving"
        with watch.serving(what) as progress:
            result = server.serve(traffic, question.skip_bad, progress, keep_passes=question.keep_passes)
        runs[name] = Run(server=server, result=result, slo=limits)
        if result.interrupted:
            break
    return Simulated(requests=traffic, runs=runs, use=use)


def _with_adapters(question: SimulateQuestion, traffic: Requests, model: AnyModel) -> Requests:
    """The requests with the adapters that they choose.

    Raises:
        InputError: several adapters and a cache of prefixes, which those of different adapters do not share.
    """
    from rackline.arch import Model
    from rackline.simulation.resident_adapters import with_chosen_adapters

    adapter = model.adapter if isinstance(model, Model) else None
    if adapter is not None and adapter.number > 1 and (question.prefix_caching or question.tier or question.cache_ttl):
        raise InputError(what="adapters", given=adapter.number, allowed="1 with a cache of prefixes")
    return with_chosen_adapters(traffic, adapter, count(question.seed))


def _sustained(server: Server, traffic: Requests, asked: Slo, skip_bad: bool, watch: Watch) -> Sustained:
    from rackline.search.rate_capacity import rate_capacity

    with watch.serving("searching for the highest rate") as progress:
        found = rate_capacity(traffic, lambda faster: server.serve(faster, skip_bad, progress), asked)
    run = None if found.result is None else Run(server=server, result=found.result, slo=asked)
    return Sustained(capacity=found, at_capacity=run, server=server, requests=traffic)

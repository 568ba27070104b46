"""`observe`: send a load to a live server and record what comes back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, cast

from rich.text import Text

from rackline.api.answer import Answer, SideFile, Watch, asks
from rackline.api.groups import CHIPS, ON, PRECISION, ModelQuestion, Traffic
from rackline.api.question import (
    MOST_SECONDS,
    MOST_TOKENS,
    MOST_USD,
    ClusterLike,
    MaybeLayout,
    MaybeNumber,
    MaybeWhole,
    ModelLike,
    Number,
    Option,
    Question,
    Whole,
    group,
    option,
    question,
    shared,
    whole,
)
from rackline.api.rates import classes_of
from rackline.api.resolve import cluster_of, lookup_of, window_of
from rackline.api.traffic import load_of, note_early_ends, requests_of
from rackline.api.verbs import Entry
from rackline.errors import InputError, require
from rackline.files import check_outputs, write_text
from rackline.late import late
from rackline.units import format_seconds, format_usd

with late:
    from rackline import arch, catalog, hardware, parallel, serving, simulation
    from rackline.lab import load_generator, stream
    from rackline.validation import observed, observed_report


MOST_REQUESTS = 20_000
_USUAL_REQUESTS, _USUAL_S = 100, 600.0
_SENT, _BOUNDS, _SERVER = "How requests are sent", "Bounds", "What the server runs on"


def _seconds(help_text: str, *, default: str | None) -> Any:
    return option("seconds", help_text, default=default, unit="s", maximum=MOST_SECONDS, group=_BOUNDS)


@group
class SentRequests(Question):
    """A question of how requests are sent to a live server."""

    served_name: str | None = option(
        "text",
        "model as the server names it; by default the only one that it lists",
        default=None,
        group=_SENT,
    )
    endpoint: str = option(
        "text",
        "where requests go: completions or chat",
        default="completions",
        choices=("completions", "chat"),
        group=_SENT,
    )
    prompts: str = option(
        "text",
        "how synthetic prompts are sent: tokens (ids, exact in length; completions only) or words (about one token "
        "each)",
        default="tokens",
        choices=("tokens", "words"),
        group=_SENT,
    )
    vocabulary: MaybeWhole = whole(
        "random token ids are drawn below this number; by default 10,000, or the vocabulary of `model`",
        default=None,
        minimum=2,
        maximum=MOST_TOKENS,
        group=_SENT,
    )
    natural_ends: bool = option(
        "switch",
        "let answers end where the model ends them; by default ignore_eos and min_tokens ask for the whole length, "
        "which vLLM, SGLang and llama.cpp know and OpenAI refuses",
        default=False,
        group=_SENT,
    )
    key_env: str | None = option(
        "text",
        "environment variable that holds the API key; without it no key is sent. Keys are never stored or printed",
        default=None,
        group=_SENT,
    )


@group
class LoadBounds(Question):
    """A question of a load that ends: in time, with retries, and at a cost that is estimated first."""

    usd_per_mtok_input: MaybeNumber = option(
        "count",
        "price of prompt tokens, for the cost estimate",
        default=None,
        unit="USD/Mtok",
        maximum=MOST_USD,
        zero=True,
        group=_BOUNDS,
    )
    usd_per_mtok_output: MaybeNumber = option(
        "count",
        "price of output tokens, for the cost estimate",
        default=None,
        unit="USD/Mtok",
        maximum=MOST_USD,
        zero=True,
        group=_BOUNDS,
    )
    max_time: MaybeNumber = _seconds(
        "longest time of the whole run; what is not sent by then is not, what is in flight is cut; 10min by default, "
        "with `load` its own time and 10min",
        default=None,
    )
    timeout: Number = _seconds("longest time of one request", default="2min")
    stall: Number = _seconds("longest pause without a byte", default="60s")
    retries: Whole = whole(
        "retries of a request after HTTP status 429 or 503", default="3", minimum=0, maximum=100, group=_BOUNDS
    )


@group
class KnownServer(ModelQuestion):
    """A question of a live server of which some of what runs on it is known."""

    model: ModelLike | None = option(
        "object",
        "the model as rackline knows it: catalogue name, Hugging Face id, TOML file or config.json; validate and "
        "calibrate need it",
        default=None,
        group=_SERVER,
    )
    on: ClusterLike | None = shared(ON, default=None, group=_SERVER)
    chips: MaybeWhole = shared(CHIPS, default=None, group=_SERVER)
    layout: MaybeLayout = option("text", "parallel layout, such as tp=8", default=None, group=_SERVER)
    precision: str = shared(PRECISION, default="native", group=_SERVER)
    stack: str | None = option("text", "serving stack, such as vllm or vllm=0.11.1", default=None, group=_SERVER)
    max_num_seqs: MaybeWhole = whole(
        "running sequences per rank, if not the stack's default", default=None, group=_SERVER
    )
    max_batched_tokens: MaybeWhole = whole(
        "token budget of a pass, if not the stack's default", default=None, group=_SERVER
    )
    kv_tokens: MaybeWhole = whole("KV cache capacity per rank in tokens, if it is known", default=None, group=_SERVER)

    def check_options(self) -> None:
        """Refuse chips and a layout without the cluster that they are of.

        Raises:
            InputError: such options.
        """
        if self.on is None:
            for name in self.given("chips", "layout"):
                raise InputError(what=name, given="without a cluster", allowed="together with `on`")
        super().check_options()


@question
class ObserveQuestion(KnownServer, LoadBounds, SentRequests, Traffic):
    """What does a live server do under a stated load, request by request and token by token?"""

    url: str = option("text", "address of an OpenAI-compatible server, such as http://localhost:8000", kw_only=False)
    requests: MaybeWhole = whole(
        f"largest number of requests sent, up to {MOST_REQUESTS:,}; 100 by default, with `load` all of them",
        default=None,
        maximum=MOST_REQUESTS,
        group="Traffic",
    )
    yes: bool = option("switch", "send the load without asking; its tokens and cost are printed first", default=False)
    save: str | None = option(
        "text",
        "file for the observed run, such as observed.jsonl, which validate reads",
        default=None,
        short="o",
    )


_TELLING = 0.05  # prompts that the server counts so much longer or shorter are worth a word
_SMALLEST_VOCABULARY = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """What a load comes to at most, before it is sent.

    Args:
        requests: that are sent [requests].
        input_tokens, output_tokens: of all of them [tokens].
        seconds: until the last arrival, without think times and the server's own time [s].
        usd: cost at the given prices; None where they are not given [USD].
    """

    requests: int
    input_tokens: int
    output_tokens: int
    seconds: float
    usd: float | None = None

    @property
    def text(self) -> str:
        """One line."""
        over = f" over {format_seconds(self.seconds)}" if self.seconds > 0 else ""
        cost = "cost not known (no prices given)" if self.usd is None else f"at most {format_usd(self.usd)}"
        return (
            f"{self.requests:,} requests{over}, {self.input_tokens:,} prompt tokens and at most "
            f"{self.output_tokens:,} output tokens, {cost}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was observed.

    Args:
        run: every request.
        ahead: what was announced.
        file: where it was written, if it was.
        unwritten: why it was not; empty where it was.
    """

    json_keys: ClassVar = ("*summary", "generator=run.generator", "run_id=run.run_id", "started=run.started",
                           "served_name=run.served_name", "interrupted=run.interrupted", "ahead", "file",
                           "unwritten")  # fmt: skip

    run: observed.ObservedRun
    ahead: Ahead
    file: str | None = None
    unwritten: str = ""

    @property
    def summary(self) -> observed_report.ObservedSummary:
        """Counts, rates and percentiles in SI units."""
        return observed_report.summary_of_run(self.run)


Answered: TypeAlias = "Answer[ObserveQuestion, Observation]"


def _text(answer: Answered, width: int) -> Iterable[Any]:
    found = answer.result
    yield observed_report.observed_report(found.run)
    if found.file is not None:
        yield Text(f"written to {found.file}", style="dim")


def _summary(answer: Answered) -> str:
    data = answer.result.summary
    first, each = data["ttft_s"]["p50"], data["tpot_s"]["p50"]
    times = "" if first is None else f", TTFT p50 {format_seconds(first)}"
    times += "" if each is None else f", TPOT p50 {format_seconds(each)}"
    return f"{data['finished']:,} of {data['requests']:,} requests{times}"


def _notes(answer: Answered) -> Iterable[str]:
    if answer.result.unwritten:
        yield f"error: {answer.result.unwritten}"
    if not answer.result.run.counts["finished"]:
        yield "error: no request was answered"


_FORMATS = ("vllm", "aiperf", "genai-perf", "inference-perf")
_ROW = ("arrival_s", "sent_s", "outcome", "prompt_len", "tokens", "ttft_s", "tpot_s", "e2e_s", "end_s", "status",
        "retries", "error")  # fmt: skip
_SPELLED = {"prompt_len": "prompt_tokens", "tokens": "output_tokens"}


@asks(
    ObserveQuestion,
    text=_text,
    summary=_summary,
    rows=lambda answer: [
        {_SPELLED.get(name, name): getattr(one, name) for name in _ROW} for one in answer.result.run.requests
    ],
    notes=_notes,
    status=lambda answer: 2 if answer.result.unwritten else int(not answer.result.run.counts["finished"]),
    figures={"latency": lambda answer: observed_report.observed_figure(answer.result.run)},
    files={
        "export": SideFile(
            option=Option(
                kind="text",
                help=f"write the run as another load generator does: {', '.join(_FORMATS)}, then the file",
                choices=_FORMATS,
                before_file=True,
            ),
            write=lambda answer, path, form: write_text(
                path, observed_report.result_text(answer.result.run, form), what="export"
            ),
        )
    },
    simulates=True,
    entry=Entry(
        group="Measure",
        place=1,
        line="Send a load to a live server and record each token.",
        usual=(
            "rate",
            "users",
            "trace",
            "requests",
            "input",
            "output",
            "save",
            "yes",
            "key_env",
            "model",
            "on",
            "stack",
            "max_time",
        ),
        elsewhere="asks another server",
        examples="""
    rackline observe http://localhost:8000 --rate 2 --requests 200 \\
      --input 512 --output 128 --model llama-3.1-8b --on dgx-h100 --chips 1 \\
      --stack vllm -o observed.jsonl
    rackline validate observed.jsonl
    rackline observe http://localhost:8000 --load day --load-time 20min --rate 2 \\
      --classes classes.toml -o observed.jsonl
""",
    ),
)
def observe(question: ObserveQuestion, watch: Watch) -> Observation:
    """Send a stated load to a live OpenAI-compatible server and record what comes back, token by token.

    Tokens and cost are printed and asked for before anything is sent. Traffic is one of a trace, a rate and a number of
    users, as in simulate. Every request has a record, however it ends; an interruption gives what was recorded so
    far. The run is a case: validate predicts it and calibrate fits to it.

    Example:
        >>> import rackline as rl
        >>> rl.observe("http://localhost:8000", rate=5, input=512, output=64, yes=True)  # doctest: +SKIP
        <observe: 100 of 100 requests, TTFT p50 41.2 ms, TPOT p50 9.87 ms>
    """
    check_outputs({"save": question.save})
    traffic = _traffic(question, watch)
    deployment, vocabulary = _deployment(question, watch)
    ahead = _ahead(question, traffic)
    to = stream.target(
        question.url,
        endpoint="chat" if question.endpoint == "chat" else "completions",
        served_name=question.served_name,
        key_env=question.key_env,
    )
    announced = f"{ahead.text}, to {to.served_name} at {to.base_url}"
    require(question.yes or watch.agrees(announced), what="yes", given="nothing", allowed=f"`yes`, to send {announced}")
    prompts = load_generator.Prompts(
        target=to,
        form="words" if question.prompts == "words" else "tokens",
        vocab_size=question.vocabulary or vocabulary,
        natural_ends=question.natural_ends,
        seed=question.seed,
    )
    bounds = stream.Bounds(
        max_s=question.max_time or _USUAL_S + (0.0 if question.load is None else load_of(question).seconds),
        timeout_s=question.timeout,
        stall_s=question.stall,
        retries=question.retries,
    )
    if question.yes:
        watch.announces(announced)
    with watch.serving("observing") as progress:
        run = _run(question, traffic, prompts, bounds, deployment, progress)
    _remark(run, watch)
    if question.save is None:
        return Observation(run=run, ahead=ahead)
    try:
        write_text(Path(question.save), run.line(), what="save")
    except InputError as error:  # what was observed is not lost with its file
        return Observation(run=run, ahead=ahead, unwritten=str(error))
    return Observation(run=run, ahead=ahead, file=question.save)


def _traffic(question: ObserveQuestion, watch: Watch) -> simulation.Requests:
    """The requests that are sent.

    Raises:
        InputError: more than may be sent; a backlog, which would be sent at once.
    """
    require(
        not any(one.offline for one in classes_of(question)),
        what="classes",
        given="an offline class",
        allowed="only in simulate",
    )
    model = _model(question, watch)
    found = requests_of(question, inf if model is None else window_of(model))
    if model is not None:
        note_early_ends(question, model, 0, watch)
    most = question.requests or (MOST_REQUESTS if question.load is not None else _USUAL_REQUESTS)
    if question.load is not None and question.requests is None and len(found) > most:
        raise InputError(
            what="load",
            given=f"{len(found):,} requests",
            allowed=f"at most {most:,}: a lower `rate`, a shorter `load_time`, or the first of them (`requests`)",
        )
    return found.first(most)


def _model(question: ObserveQuestion, watch: Watch) -> arch.AnyModel | None:
    """The model that is served, as far as it is known."""
    if isinstance(question.model, str):
        return lookup_of(question, watch).model(question.model)
    return cast("arch.AnyModel | None", question.model)


def _run(
    question: ObserveQuestion,
    traffic: simulation.Requests,
    prompts: load_generator.Prompts,
    bounds: Any,
    deployment: dict[str, Any],
    progress: Any,
) -> observed.ObservedRun:
    started = datetime.now(UTC).replace(microsecond=0).isoformat()
    found = load_generator.observe_load(traffic, prompts, bounds, progress)
    to: stream.Target = prompts.target
    return observed.ObservedRun(
        run_id=f"{to.served_name} {started}",
        requests=found.requests,
        deployment=deployment,
        load={name: value for name, value in question.to_data().items() if name in _LOAD},
        url=to.base_url,
        endpoint=to.endpoint,
        served_name=to.served_name,
        started=started,
        generator=found.generator,
        hash_tokens=traffic.hash_tokens,
        interrupted=found.interrupted,
    )


_LOAD = (
    "trace", "rate", "load", "load_time", "classes", "users", "requests", "input", "output", "lengths", "mix",
    "arrival_cv", "diurnal_amplitude", "turns", "think_time", "system_prompt", "tool_calls", "tool_time",
    "tool_output", "session_lengths", "rate_scale", "seed", "natural_ends", "prompts", "max_time", "timeout", "stall",
    "retries",
)  # fmt: skip


def _ahead(question: ObserveQuestion, traffic: simulation.Requests) -> Ahead:
    inputs, outputs = int(traffic.input_len.sum()), int(traffic.output_len.sum())
    free = traffic.arrival_s if traffic.after is None else traffic.arrival_s[traffic.after < 0]
    usd_input, usd_output = question.usd_per_mtok_input, question.usd_per_mtok_output
    known = usd_input is not None or usd_output is not None
    usd = (inputs * (usd_input or 0.0) + outputs * (usd_output or 0.0)) / 1e6
    return Ahead(
        requests=len(traffic),
        input_tokens=inputs,
        output_tokens=outputs,
        seconds=float(free.max()),
        usd=usd if known else None,
    )


def _deployment(question: ObserveQuestion, watch: Watch) -> tuple[dict[str, Any], int]:
    """The keys of a case that say what is served, as far as it is known, and the size of the vocabulary."""
    found: dict[str, Any] = {}
    records: dict[str, Any] = {}
    vocabulary = _SMALLEST_VOCABULARY
    model = _model(question, watch)
    if model is not None:
        if isinstance(question.model, str) and Path(question.model).exists():
            record = lookup_of(question, watch).find(question.model).record
            records["model"] = record.model_dump(mode="json", by_alias=True, exclude_unset=True)
        found["model"] = model.name
        vocabulary = int(getattr(model, "vocab_size", 0)) or vocabulary
    if question.on is not None:
        found |= _cluster(question, records)
    if question.layout is not None:
        layout = parallel.parse_layout(question.layout)
        parts = {name: getattr(layout, name) for name in ("tp", "pp", "ep", "moe_tp", "attention_dp", "cp")}
        found["layout"] = {name: size for name, size in parts.items() if size > 1}
    if question.stack is not None:
        name, _, version = question.stack.partition("=")
        found["stack"] = serving.stack(name).name
        found |= {"stack_version": version} if version else {}
    found["precision"] = question.precision
    given = {"max_num_seqs": question.max_num_seqs, "max_num_batched_tokens": question.max_batched_tokens,
             "kv_tokens": question.kv_tokens}  # fmt: skip
    found |= {name: value for name, value in given.items() if value is not None}
    if records:
        found["records"] = records
    return found, vocabulary


def _cluster(question: ObserveQuestion, records: dict[str, Any]) -> dict[str, Any]:
    """Chip and number of chips; the records of a cluster and a chip that are not in the catalogue."""
    on = cluster_of(cast("ClusterLike", question.on))
    if isinstance(question.on, str) and (
        on.name not in catalog.names("clusters") or on.chip.name not in catalog.names("chips")
    ):
        plain = hardware.cluster_record(question.on)
        chip = hardware.chip_record(hardware.chip_name_of(plain, question.on))
        records["chip"] = chip.model_dump(mode="json", by_alias=True, exclude_unset=True)
        records["cluster"] = {**plain.model_dump(mode="json", by_alias=True, exclude_unset=True), "chip": chip.name}
    return {"chip": on.chip.name, "num_chips": question.chips or on.num_chips}


def _remark(run: observed.ObservedRun, watch: Watch) -> None:
    """Say what the reader must know of a run."""
    limits = run.generator
    if limits is not None and limits.binds:
        watch.warn(
            f"the load generator itself binds: at p99 it sent {format_seconds(limits.late_p99_s)} late and read "
            f"{format_seconds(limits.lag_p99_s)} late; times of this run are those of the generator, not of the server"
        )
    if run.interrupted:
        watch.warn("interrupted: what follows is what was recorded so far")
    done = [one for one in run.requests if one.outcome == "finished"]
    silent = sum(one.output_tokens is None for one in done)
    if silent:
        watch.warn(f"{silent:,} answers came without usage: their pieces are counted as tokens")
    counted = [one for one in done if one.prompt_tokens is not None]
    if counted:
        ratio = sum(one.prompt_len for one in counted) / sum(one.input_len for one in counted)
        if abs(ratio - 1.0) > _TELLING:
            watch.warn(f"the server counts {ratio:.2f} times the prompt tokens that were asked for")
    short = sum(one.tokens < one.output_len for one in done)
    if short:
        watch.warn(f"{short:,} answers ended before the length that was asked for")

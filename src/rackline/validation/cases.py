"""Measured cases: one JSON object per line; unusable lines are kept with their location and the reason."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from rackline.errors import InputError, RacklineError
from rackline.files import case_folder, shipped_toml
from rackline.serving.workload import Workload
from rackline.validation.forms import FORMS, find_problem, known_keys

UNKNOWN_SPECULATION = "unknown"
"""Of `speculative`: the source does not say whether it drafts."""
NOT_SCORED = "not_scored"
"""Folder of shipped cases that one prediction cannot be compared with, so that no scoreboard counts them."""
Layout = Mapping[str, int | str]
Predicted = dict[str, float] | RacklineError | ValueError
"""Predicted values by measured key, or the error that explains why there are none."""


FIXED, LONG_TAIL = "fixed", "lognormal"
# Mean length over the nominal one.
LENGTH_SHARES = {FIXED: 1.0, "uniform_0.8_1.0": 0.9, LONG_TAIL: 1.0}
_LONG_TAILED = ("sharegpt",)  # data sets of conversations


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement and the deployment it was taken on.

    Args:
        case_id, kind: id and kind as given.
        where: file and line.
        measured: measured values by key, in SI units.
        model, chip, stack, stack_version, precision: names as the source writes them; empty if not given.
        source: where the case was published; `sources.toml` says what is known about its benchmark.
        num_chips: all chips of the deployment [chips].
        layout: the given parts of the layout.
        values: values of the keys of this kind.
        config, architecture: a model described in the case itself, else None.
        precision_detail: data types that replace those of the label, such as "kv=bf16".
    """

    case_id: str
    kind: str
    where: str
    measured: Mapping[str, float]
    model: str = ""
    chip: str = ""
    num_chips: int = 1
    stack: str = ""
    stack_version: str = ""
    source: str = ""
    precision: str = ""
    precision_detail: str = ""
    layout: Layout = field(default_factory=dict[str, int | str])
    values: Mapping[str, object] = field(default_factory=dict[str, object])
    config: Mapping[str, object] | None = None
    architecture: Mapping[str, object] | None = None

    def number(self, name: str, otherwise: float | None = None) -> float:
        """A numeric key of this kind; `otherwise` where the case does not state it."""
        value = self.values[name] if otherwise is None else self.values.get(name, otherwise)
        return float(cast("float", value))

    def whole(self, name: str, otherwise: int = 0) -> int:
        """A whole number of this kind; `otherwise` where the case does not state it."""
        return int(cast("float", self.values.get(name) or otherwise))

    def text(self, name: str, default: str = "") -> str:
        """A text key of this kind."""
        value = self.values.get(name)
        return default if value is None else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """A case that has no prediction.

    Args:
        cause: the reason, without the location.
        bad_input: whether the case itself is invalid, as opposed to not supported by the library.
        metrics: measured keys that are not scored.
    """

    json_keys: ClassVar = (
        "id=case_id",
        "reason",
        "kind",
        "where",
    )

    case_id: str
    kind: str
    where: str
    cause: str
    bad_input: bool = False
    metrics: tuple[str, ...] = ()
    model: str = ""
    chip: str = ""
    stack: str = ""
    precision: str = ""

    @property
    def reason(self) -> str:
        """The reason, with file and line if the case itself is invalid."""
        return f"{self.where}: {self.cause}" if self.bad_input else self.cause

    @classmethod
    def of(cls, case: Case, cause: str, *, bad_input: bool = False) -> Unsupported:
        """A valid case that cannot be predicted."""
        return cls(
            case_id=case.case_id,
            kind=case.kind,
            where=case.where,
            cause=cause,
            bad_input=bad_input,
            # the measured quantity of a training case is converted into a step time
            metrics=("step_s",) if case.kind == "train" else tuple(case.measured),
            model=case.model,
            chip=case.chip,
            stack=case.stack,
            precision=case.precision,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSet:
    """All cases of some files.

    Args:
        cases: cases to predict.
        unsupported: cases that cannot be predicted.
        unknown_keys: ignored keys → number of cases that have them.
    """

    cases: tuple[Case, ...]
    unsupported: tuple[Unsupported, ...]
    unknown_keys: Mapping[str, int]


def read_line(line: str, where: str, unknown_keys: dict[str, int] | None = None) -> Case | Unsupported:
    """Read one line; unknown keys are counted into `unknown_keys`.

    >>> read_line('{"id": "a", "kind": "serve"', "x.jsonl, line 3").reason
    'x.jsonl, line 3: line: got a truncated or broken JSON object (column 28), allowed: one complete JSON object'
    """

    try:
        data: object = json.loads(line)
        given = repr(type(data).__name__)
    except json.JSONDecodeError as error:
        data, given = None, f"a truncated or broken JSON object (column {error.colno})"
    except (ValueError, RecursionError):
        data, given = None, "JSON that cannot be read"
    if isinstance(data, dict):
        return case_from(cast("dict[str, object]", data), where, {} if unknown_keys is None else unknown_keys)
    cause = f"line: got {given}, allowed: one complete JSON object"
    return Unsupported(case_id=where, kind="unknown", where=where, cause=cause, bad_input=True)


def case_from(data: Mapping[str, object], where: str, unknown_keys: dict[str, int]) -> Case | Unsupported:
    """Validate plain data as a case; unknown keys are counted into `unknown_keys`."""
    problem = find_problem(data)
    if problem is not None:
        return _rejected(data, where, str(problem))
    case = _case(data, where, unknown_keys)
    cause = FORMS[case.kind].unsupported
    return Unsupported.of(case, cause) if cause else case


def _rejected(data: Mapping[str, object], where: str, cause: str) -> Unsupported:
    def name(key: str) -> str:
        value = data.get(key)
        return value if isinstance(value, str) else ""

    measured = data.get("measured")
    form = FORMS.get(name("kind"))
    keys = tuple(cast("dict[str, object]", measured)) if isinstance(measured, dict) else ()
    return Unsupported(
        case_id=name("id") or where,
        kind=name("kind") or "unknown",
        where=where,
        cause=cause,
        bad_input=True,
        metrics=tuple(key for key in keys if form is not None and key in form.measured),
        model=name("model"),
        chip=name("chip"),
        stack=name("stack"),
        precision=name("precision"),
    )


def _case(data: Mapping[str, object], where: str, unknown_keys: dict[str, int]) -> Case:
    kind = str(data["kind"])
    form, known = FORMS[kind], known_keys(kind)
    measured = cast("dict[str, float]", data.get("measured") or {})
    for key in [key for key in data if key not in known] + [
        f"measured.{key}" for key in measured if key not in form.measured
    ]:
        unknown_keys[key] = unknown_keys.get(key, 0) + 1

    def text(key: str) -> str:
        value = data.get(key)
        return "" if value is None else str(value)

    own = {key: value for key, value in data.items() if key in form.required or key in form.optional}
    return Case(
        case_id=str(data["id"]),
        kind=kind,
        where=where,
        measured={key: float(value) for key, value in measured.items() if key in form.measured},
        model=text("model"),
        chip=text("chip"),
        num_chips=int(cast("int", data.get("num_chips") or 1)),
        stack=text("stack"),
        stack_version=text("stack_version"),
        source=text("source"),
        precision=text("precision"),
        precision_detail=_detail(data.get("precision_detail")),
        layout=cast("Layout", data.get("layout") or {}),
        values=own,
        config=cast("Mapping[str, object] | None", data.get("config")),
        architecture=cast("Mapping[str, object] | None", data.get("architecture")),
    )


def _detail(detail: object) -> str:
    if isinstance(detail, dict):
        return ",".join(f"{key}={value}" for key, value in cast("dict[str, object]", detail).items())
    return str(detail or "")


_SHAPES = {"Llama-3.3": "Llama-3.1", "DeepSeek-R1": "DeepSeek-V3", "DeepSeek-V3.1": "DeepSeek-V3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """How a benchmark starts the servers of a stack and a model, where that differs from the stack's defaults.

    Args:
        stack: of the cases, as they write it.
        model: of the cases, as they write it; all where it is empty.
        chips: of the cases; all where it is empty.
        prompt_graph_tokens: `captured_prompt_tokens` of `rackline.serving.stack.StackGraphs`; the stack's own where it
            is None [tokens].
        precision_detail: data types that they set, as in a case.
        offline: whether they call the engine's class for offline use instead of its server.
        max_batched_tokens: that commands at unlimited rate set; the stack's own where it is None [tokens].
        batch_wait_steps: as of `rackline.serving.stack.StackScheduler`.
        lengths: of its requests, as "input/output"; all where it is empty.
        tp_below: of deployments with a tp below it; of all where it is 0 [chips].
    """

    stack: str
    model: str = ""
    chips: tuple[str, ...] = ()
    prompt_graph_tokens: int | None = None
    precision_detail: str = ""
    offline: bool = False
    max_batched_tokens: int | None = None
    batch_wait_steps: int | None = None
    lengths: tuple[str, ...] = ()
    tp_below: int = 0

    def holds(self, case: Case) -> bool:
        """Whether it is about a case."""
        return (
            self.stack == case.stack
            and self.model in ("", case.model)
            and (not self.chips or case.chip in self.chips)
            and (not self.lengths or _lengths_of(case) in self.lengths)
            and (not self.tp_below or int(case.layout.get("tp", 1)) < self.tp_below)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A benchmark.

    Args:
        prefix: start of the `source` of its cases.
        name: name of the benchmark.
        laboratory: who ran its servers; the name if it is empty.
        tpot: which inter-token time it publishes.
        sampling: sampling method of its requests.
        precision_detail: data types of its servers, as in a case.
        output_spread: standard deviation of its output lengths over their mean [1].
        assumed_input_len: prompt length instead of one that a case only assumes; None keeps that of the case [tokens].
        attention_dp_of_mixtures: whether its tp means attention data parallelism for mixtures of experts.
        requests: number of requests by lengths, as "input/output" [requests].
        requests_per_user: number of requests over the concurrency, where all users begin at once and all requests
            count; 0 where it is not known [requests].
        launched: settings of its launch commands.
        newest_versions: newest version of a stack that its cases without a number can have run, by its date.
        urls, accessed: sources of this information, and the date of access.
    """

    prefix: str = ""
    name: str = ""
    laboratory: str = ""
    tpot: Literal["mean", "median"] = "mean"
    sampling: Literal["greedy", "top_p"] = "greedy"
    precision_detail: str = ""
    output_spread: float = 0.0
    assumed_input_len: float | None = None
    attention_dp_of_mixtures: bool = False
    requests: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    requests_per_user: int = 0
    launched: tuple[Launched, ...] = ()
    newest_versions: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    urls: tuple[str, ...] = ()
    accessed: str = ""


_PLAIN = Source()


def source_of(case: Case) -> Source:
    """The benchmark of a case; by default one that publishes means of greedy decoding."""
    return next((source for source in known_sources() if case.source.startswith(source.prefix)), _PLAIN)


_PUBLISHERS = re.compile(
    r"(?:https?://)?github\.com/(?P<repository>[^/\s]+/[^/\s]+)(?!\S*/(?:issues|pull)/)"
    r"|https?://(?!github\.com/)(?P<host>[^/\s]+)"
    r"|(?P<paper>arXiv:[\d.]+\d)"
)
"""Addresses whose pages are of one publisher. In threads of a repository people report their own servers."""


def laboratory_of(case: Case) -> str:
    """Return who ran the servers of a case: as its benchmark says, else the repository, site or paper it is from."""
    benchmark = source_of(case)
    return benchmark.laboratory or benchmark.name or publisher_of(case.source) or "-"


def publisher_of(source: str) -> str:
    """Return who published a source, so that all pages of one publisher have the same name.

    >>> publisher_of("https://github.com/owner/name/blob/0a1b/results/b.md"), publisher_of("arXiv:2211.05102 Table 2")
    ('owner/name', 'arXiv:2211.05102')
    >>> publisher_of("https://github.com/owner/name/issues/7")
    'https://github.com/owner/name/issues/7'
    """
    address = source.partition("@")[0].partition("#")[0]
    match = _PUBLISHERS.match(address)
    return next(filter(None, match.groups()), address) if match else address


def shape_of(model: str) -> str:
    """A model without what releases of one shape differ in, so that they are left out together.

    >>> shape_of("Qwen/Qwen3-235B-A22B-Thinking-2507-FP8"), shape_of("meta-llama/Llama-3.3-70B-Instruct")
    ('Qwen3-235B-A22B', 'Llama-3.1-70B')
    """
    name = model.rpartition("/")[2]
    for word in ("-Instruct", "-Thinking", "-2507", "-FP8", "-NVFP4"):
        name = name.replace(word, "")
    for release, shape in _SHAPES.items():
        name = name.replace(release, shape)
    return name or model


def launched_of(case: Case) -> tuple[Launched, ...]:
    """What the launch command of a case set, where its benchmark says so; later ones win."""
    return tuple(one for one in source_of(case).launched if one.holds(case))


def requests_of(case: Case) -> float:
    """Number of requests of a run, from the case or its benchmark; 0 if neither states it."""
    if case.values.get("num_prompts"):
        return case.number("num_prompts")
    found = source_of(case)
    if "concurrency" in case.values:
        return found.requests_per_user * case.number("concurrency")
    return float(found.requests.get(_lengths_of(case), 0))


def rounds_of(case: Case) -> float:
    """Requests that each user of a closed loop sends; infinite where their number is unknown, or where the source
    states medians, which a first burst hardly moves."""
    if case.text("statistic") == "median":
        return inf
    return requests_of(case) / case.number("concurrency") or inf


def _lengths_of(case: Case) -> str:
    return f"{case.number('input_len'):g}/{case.number('output_len'):g}"


@cache
def known_sources() -> tuple[Source, ...]:
    """All entries."""
    return tuple(
        Source(
            launched=tuple(Launched(**_with_tuples(row)) for row in entry.pop("launched", ())), **_with_tuples(entry)
        )
        for entry in shipped_toml("rackline.validation", "sources.toml")["source"]
    )


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(cast("list[Any]", one)) if isinstance(one, list) else one for key, one in values.items()}


def published() -> Path:
    """The file of cases: 42, chosen by the hashes of their ids, none for how well it is predicted.

    Sources: named in each line; how they were picked stands in tests/fixtures/README.md.
    """
    return Path(__file__).with_name("published.jsonl")


def shipped_cases() -> tuple[Path, ...]:
    """Return the files of measured cases that come with rackline, without those of NOT_SCORED.

    A wheel holds them inside the package; a clone has them in `cases/` at its root.

    Raises:
        InputError: there are none.
    """
    files = tuple(sorted(case_folder().glob("*.jsonl.gz")))
    if files:
        return files
    raise InputError(
        what="case files",
        given="none",
        allowed="files of measured cases, or an installation with the cases that rackline ships (cases/ in a clone)",
    )


def workload_of(case: Case) -> Workload:
    """Mean lengths of a case's requests."""
    share, source = length_share(case), source_of(case)
    output_len = case.number("output_len") * share if "output_len" in case.values else 2.0
    input_len = case.number("input_len") * share
    if source.assumed_input_len and "input_len" in cast("Sequence[str]", case.values.get("assumed") or ()):
        input_len = source.assumed_input_len
    return Workload(
        input_len=max(input_len, 1.0),
        output_len=max(output_len, 2.0),
        equal_lengths=distribution_of(case) == FIXED and not source.output_spread,
        output_spread=source.output_spread,
    )


def length_share(case: Case) -> float:
    """Mean over nominal length.

    Raises:
        InputError: the length distribution is unknown.
    """
    name = distribution_of(case)
    if name not in LENGTH_SHARES:
        raise InputError(what="length_distribution", given=name, allowed=", ".join(LENGTH_SHARES))
    return LENGTH_SHARES[name]


def distribution_of(case: Case) -> str:
    """How lengths are drawn: as the data set has them, else as the case says; equal by default."""
    return LONG_TAIL if case.text("data_set") in _LONG_TAILED else case.text("length_distribution", FIXED)


def request_s(case: Case, tpot_s: float, ttft_s: float) -> float:
    """Time of one request at the mean output length, ttft + (output_len - 1) · tpot [s]."""
    return ttft_s + (case.number("output_len") * length_share(case) - 1.0) * tpot_s

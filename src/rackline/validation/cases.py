"""Measured cases: one JSON object per line; unusable lines are kept with their location and the reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, cast

from rackline.validation.forms import FORMS, Problem, find_problem, known_keys

Layout = Mapping[str, int | str]


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

    def number(self, name: str) -> float:
        """A numeric key of this kind."""
        return float(cast("float", self.values[name]))

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
    except json.JSONDecodeError as error:
        cause = f"line: got a truncated or broken JSON object (column {error.colno}), allowed: one complete JSON object"
        return Unsupported(case_id=where, kind="unknown", where=where, cause=cause, bad_input=True)
    except (ValueError, RecursionError):
        cause = "line: got JSON that cannot be read, allowed: one complete JSON object"
        return Unsupported(case_id=where, kind="unknown", where=where, cause=cause, bad_input=True)
    if not isinstance(data, dict):
        problem = Problem(what="line", given=type(data).__name__, allowed="one complete JSON object")
        return Unsupported(case_id=where, kind="unknown", where=where, cause=str(problem), bad_input=True)
    return case_from(cast("dict[str, object]", data), where, {} if unknown_keys is None else unknown_keys)


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

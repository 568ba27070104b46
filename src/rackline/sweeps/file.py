"""A sweep as data: one TOML file or mapping, read once into a question with ranges in place of values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from rackline.api.answer import find_verb
from rackline.api.question import Option, options, written_defaults
from rackline.api.verbs import entries
from rackline.errors import InputError, UnitError, nearest_name, placed, unknown_name
from rackline.files import parse_json, parse_toml, read_text
from rackline.sweeps.expression import Draws, Expression, Values, is_range, read_expression, read_range
from rackline.units import parse_number_for_key

Place = Literal["option", "set", "input"]
Method = Literal["sobol", "latin_hypercube", "random", "saltelli"]
Sense = Literal["min", "max"]
METHODS: tuple[Method, ...] = get_args(Method)
COMPILED = "explain"
"""The question whose answers are arithmetic of a compiled table."""

_TABLES = ("options", "set", "inputs", "sample", "derived", "constraints", "objectives", "output")
_SEE = "see `rackline sweep --new FILE`"
_LARGEST_FILE = 2**24  # bytes
_MOST_ROWS_PER_SHARD = 2**26


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A quantity with several values.

    Args:
        name: its column.
        place: an option of the question, a setting of model, cluster or chip, or an input of expressions alone.
        values: in the order of the file, or the distribution that they are drawn from.
    """

    name: str
    place: Place
    values: Values | Draws


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How quantities with a distribution are drawn, all of them together.

    Args:
        method: Sobol sequence, Latin hypercube, independent draws, or the design of Saltelli for Sobol' indices.
        num: draws; of Saltelli's design the base sample, of which it makes num · (quantities + 2) points [count].
        seed: random seed.
    """

    method: Method = "sobol"
    num: int = 1024
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What is kept of each point.

    Args:
        results: columns of results; empty for the usual ones of the question.
        float_bits: of a stored number, 32 or 64 [bits].
        rows_per_shard: points of one file, about [count].
    """

    results: tuple[str, ...] = ()
    float_bits: int = 32
    rows_per_shard: int = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFile:
    """A sweep: a question with ranges, and what is wanted of its answers.

    Args:
        ask: question that is asked at each point.
        fixed: options with one value, as they were written.
        settings: KEY → value of `set`, those with one value.
        inputs: numbers for expressions alone, those with one value.
        axes: quantities with several values, in the order of the file.
        sample: how those with a distribution are drawn.
        derived: column → expression, in the order of the file.
        constraints: name → test.
        objectives: column → whether less or more of it is better, the most important first.
        output: what is kept.
        title: what the sweep is about.
    """

    ask: str
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    inputs: Mapping[str, float] = field(default_factory=dict[str, float])
    axes: tuple[Axis, ...] = ()
    sample: Sample = field(default_factory=Sample)
    derived: Mapping[str, Expression] = field(default_factory=dict[str, Expression])
    constraints: Mapping[str, Expression] = field(default_factory=dict[str, Expression])
    objectives: Mapping[str, Sense] = field(default_factory=dict[str, Sense])
    output: Output = field(default_factory=Output)
    title: str = ""

    @property
    def is_compiled(self) -> bool:
        """Whether points are arithmetic of compiled tables; else each combination is a question of its own."""
        return self.ask == COMPILED

    @property
    def drawn(self) -> tuple[Axis, ...]:
        """Quantities with a distribution."""
        return tuple(one for one in self.axes if isinstance(one.values, Draws))

    @property
    def numbers(self) -> dict[str, float]:
        """Inputs with one value that expressions may read."""
        known = options(find_verb(self.ask).question)
        found: dict[str, float] = {}
        for name, value in self.fixed.items():
            if known[name].is_quantity and not known[name].several:
                found[name] = float(known[name].read(value, name))
        for key, value in self.settings.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[key] = float(value)
        return {**found, **self.inputs}


def read_file(given: str | Path | Mapping[str, Any]) -> SweepFile:
    """Read a sweep from a TOML or JSON file, or from the same data.

    Raises:
        InputError: a file that cannot be read, an unknown key or a value that its option cannot use, with the place.
    """
    if isinstance(given, Mapping):
        return _read(given, "sweep")
    text = read_text(
        given, what="sweep", allowed="a TOML file, see `rackline sweep --new FILE`", max_bytes=_LARGEST_FILE
    )
    try:
        data: Any = parse_json(text) if str(given).endswith(".json") else parse_toml(text)
    except ValueError as error:
        raise InputError(what=str(given), given=str(error), allowed=f"TOML, {_SEE}") from None
    if not isinstance(data, Mapping):
        raise InputError(what=str(given), given="something else", allowed=f"tables, {_SEE}")
    return _read(cast("Mapping[str, Any]", data), str(given))


def _read(data: Mapping[str, Any], where: str) -> SweepFile:
    for key in data:
        if key not in ("ask", "title", *_TABLES):
            allowed = ", ".join(["ask", "title", *(f"[{name}]" for name in _TABLES)])
            raise InputError(
                what=where, given=key, allowed=allowed, nearest=nearest_name(key, ["ask", "title", *_TABLES])
            )
    with placed(where):
        return _sweep(data, {name: _table(data, name) for name in _TABLES})


def _table(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = data.get(name, {})
    if not isinstance(found, Mapping):
        raise InputError(what=name, given=found, allowed=f"a table [{name}]")
    return cast("Mapping[str, Any]", found)


def _sweep(data: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> SweepFile:
    ask = _choice(data.get("ask", COMPILED), tuple(name for name, one in entries().items() if one.sweep_s), "ask")
    fixed, axes = _options(ask, tables["options"])
    settings, more = _settings(tables["set"])
    inputs, free = _inputs(tables["inputs"])
    found = SweepFile(
        ask=ask,
        title=str(data.get("title", "")),
        fixed=fixed,
        settings=settings,
        inputs=inputs,
        axes=(*axes, *more, *free),
        sample=_sample(tables["sample"]),
        derived={name: read_expression(one, f"derived {name}") for name, one in tables["derived"].items()},
        constraints={name: _test(one, name) for name, one in tables["constraints"].items()},
        objectives={
            name: cast("Sense", _choice(one, ("min", "max"), f"objectives {name}"))
            for name, one in flat(tables["objectives"])
        },
        output=_output(tables["output"]),
    )
    _check_names(found)
    if "sample" in data and not found.drawn:
        raise InputError(what="sample", given="[sample]", allowed="a quantity with a distribution, such as uniform")
    return found


def _choice(given: Any, known: tuple[str, ...], what: str) -> str:
    if given not in known:
        raise unknown_name(what, given, known)
    return given


def _options(ask: str, table: Mapping[str, Any]) -> tuple[dict[str, Any], list[Axis]]:
    """Options with one value, and those with several."""
    kind = find_verb(ask).question
    known = options(kind)
    fixed: dict[str, Any] = {}
    axes: list[Axis] = []
    for name, given in table.items():
        if name == "set":
            raise InputError(what="options", given="set", allowed="a table [set] of its own")
        if name not in known:
            allowed = ", ".join(one for one in known if one != "set")
            raise InputError(what=f"options of {ask}", given=name, allowed=allowed, nearest=nearest_name(name, known))
        if is_range(given):
            one = known[name]
            values = read_range(given, name, _reader(one), whole=one.kind == "whole" or name in _WHOLE)
            axes.append(Axis(name=name, place="option", values=values))
        else:
            known[name].read(given, name)
            fixed[name] = given
    for name in known:
        if name not in written_defaults(kind) and name not in table:
            raise InputError(what=f"options.{name}", given="nothing", allowed=known[name].help)
    return fixed, axes


_WHOLE = ("context", "prefill", "input", "output")  # tokens come in whole numbers


def _reader(one: Option) -> Any:
    """What reads one value: a number in SI units, a text, a switch, or texts of an option that holds several."""

    def read(value: Any, name: str) -> Any:
        found = one.read(value, name)
        if one.several or one.kind in ("limit", "object", "settings"):
            return value if isinstance(value, str | int | float | bool) else json.dumps(value)
        return found

    return read


def _settings(table: Mapping[str, Any]) -> tuple[dict[str, Any], list[Axis]]:
    fixed: dict[str, Any] = {}
    axes: list[Axis] = []
    for key, given in flat(table):
        if is_range(given):
            whole = key.rsplit(".", 1)[-1] in ("size", "num_layers") or key.rsplit(".", 1)[-1].startswith("num_")
            axes.append(Axis(name=key, place="set", values=read_range(given, key, setting_value, whole=whole)))
        else:
            fixed[key] = setting_value(given, key)
    return fixed, axes


def setting_value(given: Any, key: str) -> Any:
    """A value of a setting: a number in SI units where the key is of a number, else a text.

    Args:
        given: such as "20TB/s".
        key: such as hbm_bytes_per_s.
    """
    if isinstance(given, bool | int | float):
        return given
    if not isinstance(given, str):
        raise InputError(what=f"set {key}", given=given, allowed="a number, or a text with its unit")
    try:
        return parse_number_for_key(given, name=_UNIT_OF.get(key, key))
    except UnitError:
        if any(letter.isdigit() for letter in given[:1]):
            raise
        return given


# short names of quantities (see `rackline.api.resolve`) and keys that say their units
_UNIT_OF = {
    "scale_up_bandwidth": "bytes_per_s",
    "scale_out_bandwidth": "bytes_per_s",
    "hbm_bandwidth": "bytes_per_s",
    "hbm_capacity": "bytes",
}


def _inputs(table: Mapping[str, Any]) -> tuple[dict[str, float], list[Axis]]:
    fixed: dict[str, float] = {}
    axes: list[Axis] = []
    for name, given in table.items():
        if is_range(given):
            axes.append(Axis(name=name, place="input", values=read_range(given, name, _number)))
        else:
            fixed[name] = _number(given, name)
    return fixed, axes


def _number(given: Any, name: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise InputError(what=f"inputs {name}", given=given, allowed="a number in SI units, without a unit")
    return float(given)


def _sample(table: Mapping[str, Any]) -> Sample:
    known = {"method", "num", "seed"}
    for name in table:
        if name not in known:
            raise unknown_name("sample", name, sorted(known))
    chosen = cast("Method", _choice(str(table.get("method", "sobol")).replace("-", "_"), METHODS, "sample method"))
    num = _count(table.get("num", 1024), "sample num", 2, 10_000_000)
    if chosen in ("sobol", "saltelli") and num & (num - 1):
        nearest = 2 ** round(num).bit_length()
        nearest = nearest if nearest - num < num - nearest // 2 else nearest // 2
        raise InputError(
            what="sample num", given=num, allowed="a power of two for a Sobol sequence", nearest=str(nearest)
        )
    return Sample(method=chosen, num=num, seed=_count(table.get("seed", 0), "sample seed", 0, 2**63))


def _count(given: Any, what: str, low: int, high: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not low <= given <= high:
        raise InputError(what=what, given=given, allowed=f"a whole number, {low:,} to {high:,}")
    return given


def _test(given: Any, name: str) -> Expression:
    found = read_expression(given, f"constraints {name}")
    if not found.is_test:
        raise InputError(what=f"constraints {name}", given=given, allowed='a comparison, such as "server_s <= 0.03"')
    return found


def _output(table: Mapping[str, Any]) -> Output:
    known = ("results", "float_bits", "rows_per_shard")
    for name in table:
        if name not in known:
            raise unknown_name("output", name, known)
    results = cast("list[Any] | None", table.get("results", []))
    if not isinstance(results, list) or not all(isinstance(one, str) for one in results):
        raise InputError(what="output results", given=results, allowed="a list of names of columns")
    bits = table.get("float_bits", 32)
    if bits not in (32, 64):
        raise InputError(what="output float_bits", given=bits, allowed="32 or 64")
    rows = _count(table.get("rows_per_shard", 2**20), "output rows_per_shard", 1, _MOST_ROWS_PER_SHARD)
    return Output(results=tuple(results), float_bits=bits, rows_per_shard=rows)


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys, which TOML reads as tables inside of tables, as one level again; ranges are left as they are."""
    for key, value in table.items():
        name = f"{prefix}{key}"
        nested = isinstance(value, Mapping) and not any(
            not isinstance(one, Mapping) for one in cast("Mapping[str, Any]", value).values()
        )
        if nested or (isinstance(value, Mapping) and not _is_form(cast("Mapping[str, Any]", value))):
            yield from flat(cast("Mapping[str, Any]", value), f"{name}.")
        else:
            yield name, value


def _is_form(table: Mapping[str, Any]) -> bool:
    """Whether a table is a range (its values are lists of ends, or numbers of steps)."""
    return any(isinstance(value, list) and key in _FORMS for key, value in table.items())


_FORMS = ("linear", "log", "uniform", "log_uniform", "normal", "log_normal")


def _check_names(found: SweepFile) -> None:
    """Refuse a column that is there twice."""
    seen: dict[str, str] = {}
    columns = [(one.name, "a quantity") for one in found.axes]
    columns += [(name, "an option") for name in found.fixed]
    columns += [(name, "a setting") for name in found.settings]
    columns += [(name, "an input") for name in found.inputs]
    columns += [(name, "a derived quantity") for name in found.derived]
    columns += [(name, "a constraint") for name in found.constraints]
    for name, what in columns:
        if name in seen or name in RESERVED:
            taken = seen.get(name, "a column of every sweep")
            raise InputError(what=name, given=what, allowed=f"another name; {name} is already {taken}")
        seen[name] = what


RESERVED = ("sample", "reason", "feasible", "sweep")
"""Columns of every sweep: the draw, why a point has no result, whether it keeps all constraints."""

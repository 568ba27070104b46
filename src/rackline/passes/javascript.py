"""A pass table as one scalar function: compiled for simulators, about a microsecond a call, and as JavaScript.

Other formulas of the page are traced: a traced number answers arithmetic, comparisons and NumPy's functions with
another one and the line that computes it. So each formula stands once, in Python, and the page that needs it in a
browser gets what that Python did. A formula can be traced if its only branches on a traced number are `np.where`,
`np.minimum` and the like; `np.any` and `np.all` of one are refused, since their value is not known yet.
`features.may_occur` of one is true.
"""

from __future__ import annotations

import ast
import functools
import json
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from rackline.errors import InputError
from rackline.passes.features import (
    EXPERT_TOKENS,
    EXPERTS_TOUCHED,
    GROUP_TOKENS,
    ONE,
    TOKENS,
    Array,
    FloatLike,
)
from rackline.passes.routing import ExpertLoad
from rackline.passes.row import RowNumbers, line_seconds, total

if TYPE_CHECKING:
    from rackline.passes.calibration import StepPolicy
    from rackline.passes.table import PassTable, Stream, TimeTable


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFunction:
    """A compiled pass.

    Args:
        parameters: features that the call takes, in order; each may be given by name, missing ones are 0.
        source: the expression, for reading and for `passes.javascript`.
        tables: lists that the source names: bends of lines, loads of experts by tokens.
        call: the function itself; use it directly in hot loops.
        call_arrays: the same for arrays of KV tokens, pairs and contexts; counts of tokens stay plain numbers.
    """

    parameters: tuple[str, ...]
    source: str
    tables: Mapping[str, list[float]]
    call: Callable[..., float]
    call_arrays: Callable[..., Any]

    def __call__(self, **features: float) -> float:
        """Time of the pass [s] from features by their table names ("kv_tokens:full"); unused names are ignored."""
        return self.call(*(features.get(name, 0.0) for name in self.parameters))


def parameters_of(times: TimeTable, load: object | None) -> tuple[str, ...]:
    """Features that the function of a table takes, in order.

    Args:
        load: of experts, that the function looks up by itself; None without.

    Raises:
        InputError: a table of several layouts.
    """
    if times.num_layouts is not None:
        raise InputError(
            what="table", given=f"{times.num_layouts} layouts", allowed="one layout; use table.layout(index)"
        )
    derived = {EXPERT_TOKENS, EXPERTS_TOUCHED} if load is not None else set[str]()
    inputs = [name for name in times.feature_names if name != ONE and name not in derived]
    return (*inputs, *([GROUP_TOKENS] if load is not None and GROUP_TOKENS not in inputs else []))


def compile_table(table: PassTable, policy: StepPolicy | None = None) -> StepFunction:
    """One scalar function of the features of a table, for simulators.

    Args:
        table: of one layout.
        policy: how its rows overlap; that of its calibration by default.

    Raises:
        InputError: a table of several layouts.
    """
    times, load = table.time_table(policy), table.experts
    inputs = parameters_of(times, load)
    variables = {name: variable(name) for name in times.feature_names} | {name: variable(name) for name in inputs}
    lines = [f"def step_s({', '.join(f'{variables[name]}=0.0' for name in inputs)}):"]
    tables: dict[str, list[float]] = {}
    if isinstance(load, ExpertLoad):
        tables |= _expert_tables(load)
        lines += _experts(load)
    expressions = [_stream(stream, times, variables, lines, tables) for stream in times.streams]
    total = expressions[0] if len(expressions) == 1 else f"max({', '.join(expressions)})"
    lines.append(f"    return {times.host_s!r} + {total}")
    source = "\n".join(lines)
    code = compile(source, "<pass table>", "exec")
    scope: dict[str, Any] = {"log2": math.log2, "bisect": bisect_right, **tables}
    arrays = {**scope, "max": _largest, "min": _smallest}
    exec(code, scope)
    exec(code, arrays)
    return StepFunction(
        parameters=inputs,
        source=source,
        tables=tables,
        call=scope["step_s"],
        call_arrays=arrays["step_s"],
    )


def _expert_tables(load: ExpertLoad) -> dict[str, list[float]]:
    return {"loads": load.tokens_per_token.tolist(), "touches": load.touched.tolist()}


def _experts(load: ExpertLoad) -> list[str]:
    """Lines that look up the load of the busiest rank by the tokens of its group."""
    group = variable(GROUP_TOKENS)
    return [
        f"    position = log2({group}) * {load.points_per_octave!r} if {group} > 1.0 else 0.0",
        f"    index = min(int(position), {len(load.log_tokens) - 2})",
        "    part = min(position - index, 1.0)",
        f"    {variable(EXPERT_TOKENS)} = {group} * (loads[index] + part * (loads[index + 1] - loads[index]))",
        f"    {variable(EXPERTS_TOUCHED)} = min({group}, 1.0) * "
        "(touches[index] + part * (touches[index + 1] - touches[index]))",
    ]


def _largest(*values: Any) -> Any:
    return functools.reduce(np.maximum, values)


def _smallest(*values: Any) -> Any:
    return functools.reduce(np.minimum, values)


def variable(name: str) -> str:
    """The name of a feature in the source."""
    return "one" if name == ONE else "".join(c if c.isalnum() else "_" for c in name)


def _linear(coefficients: Array, times: TimeTable, variables: dict[str, str]) -> str:
    terms = (
        repr(value) if name == ONE else f"{value!r} * {variables[name]}"
        for name, value in zip(times.feature_names, coefficients.tolist(), strict=True)
        if value
    )
    return " + ".join(terms) or "0.0"


def merged(linear: Array, gaps: Array) -> tuple[Array, Array]:
    """Add |gap| to the line where all coefficients have one sign (features are never negative); the gaps left.

    Args:
        linear: coefficients of the line, (features,).
        gaps: coefficients of the absolute values, (rows, features).
    """
    plain = np.all(gaps >= 0.0, axis=1) | np.all(gaps <= 0.0, axis=1)
    return linear + np.abs(gaps[plain]).sum(axis=0), gaps[~plain]


def _stream(
    stream: Stream, times: TimeTable, variables: dict[str, str], lines: list[str], tables: dict[str, list[float]]
) -> str:
    """The expression of one stream; what it uses more than once goes into `lines` and `tables`."""
    line, gaps = merged(stream.linear[0, 0], stream.difference[0])
    parts: list[str] = []
    for choice in stream.choices:
        options: list[str] = []
        for index in range(choice.linear.shape[1]):
            linear, bends = merged(choice.linear[0, index], choice.difference[0, index : index + 1])
            option = " + ".join([_linear(linear, times, variables), *(_gap(row, times, variables) for row in bends)])
            ramp = float(choice.ramp[0, index, 0])
            if ramp:
                value = f"value_{len(lines)}"
                lines.append(f"    {value} = {option}")
                overhead = _linear(choice.overhead[0, index], times, variables)
                option = f"{value} + {ramp!r} * (({overhead}) * max({value} - ({overhead}), 0.0)) ** 0.5"
            options.append(option)
        parts.append(options[0] if len(options) == 1 else f"min({', '.join(options)})")
    pieces, gaps = _by_tokens(gaps, times)
    if pieces:
        at, tokens = f"piece_{len(lines)}", variables[TOKENS]
        tables |= {f"bends_{at}": pieces[0], f"bases_{at}": pieces[1], f"slopes_{at}": pieces[2]}
        lines.append(f"    {at} = bisect(bends_{at}, {tokens})")
        parts.append(f"bases_{at}[{at}] + slopes_{at}[{at}] * {tokens}")
    return "(" + " + ".join([_linear(line, times, variables), *(_gap(g, times, variables) for g in gaps), *parts]) + ")"


def _gap(row: Array, times: TimeTable, variables: dict[str, str]) -> str:
    return f"abs({_linear(row, times, variables)})"


def _by_tokens(gaps: Array, times: TimeTable) -> tuple[list[list[float]], Array]:
    """The sum of all |a + b tokens| as the bends, and base and slope before, between and behind them; other gaps."""
    names = list(times.feature_names)
    if ONE not in names or TOKENS not in names:
        return [], gaps
    columns = [names.index(ONE), names.index(TOKENS)]
    mine = (np.delete(gaps, columns, axis=1) == 0.0).all(axis=1)
    if np.count_nonzero(mine) < 3:  # a search costs as much as two absolute values
        return [], gaps
    found = gaps[mine][:, columns]  # both of each row differ from zero, or it would have one sign
    found = found[np.argsort(-found[:, 0] / found[:, 1])]
    behind = np.tri(len(found) + 1, len(found), -1) * 2.0 - 1.0  # +1 where a piece lies behind the row's bend
    return [(-found[:, 0] / found[:, 1]).tolist(), *((behind * np.sign(found[:, 1])) @ found).T.tolist()], gaps[~mine]


# what the functions call beside Math; written once, in front of them
PRELUDE = (
    "const bisect=(bends,x)=>{let low=0,high=bends.length;"
    "while(low<high){const mid=(low+high)>>1;if(x<bends[mid])high=mid;else low=mid+1}return low};"
    "const rint=x=>{const near=Math.round(x);return near-x===0.5&&near%2!==0?near-1:near};"
)
_CALLS = {
    "abs": "Math.abs",
    "max": "Math.max",
    "min": "Math.min",
    "log2": "Math.log2",
    "int": "Math.trunc",
    "bisect": "bisect",
}
_SIGNS: Mapping[type[ast.operator | ast.cmpop], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Gt: ">",
    ast.Lt: "<",
}


def step_javascript(step: StepFunction) -> str:
    """A compiled pass as a JavaScript expression: a function of its `parameters` that returns seconds."""
    return _with_tables(_translated(step.source), step.tables)


def experts_javascript(load: ExpertLoad) -> str:
    """Tokens and experts of the busiest rank, as a JavaScript function of the tokens of its group."""
    result = f"    return ({variable(EXPERT_TOKENS)}, {variable(EXPERTS_TOUCHED)})"
    source = "\n".join([f"def busiest_rank({variable(GROUP_TOKENS)}):", *_experts(load), result])
    return _with_tables(_translated(source), _expert_tables(load))


def rows_javascript(rows: Sequence[RowNumbers], names: Sequence[str]) -> str:
    """Times of each row's two resources, its overhead and the whole row, as a JavaScript function of the features.

    Args:
        rows: those that the stack has kernels for.
        names: features that the function takes, in order.

    Returns:
        A function that returns four numbers a row, one row behind the other [s].
    """

    def seconds(*values: float) -> list[FloatLike]:
        features = {ONE: 1.0, **dict(zip(names, values, strict=True))}
        found: list[FloatLike] = []
        for one in rows:
            first, second = (
                total(one.row.amounts(resource), features) / one.rates[resource] if resource in one.rates else 0.0
                for resource in one.row.resources
            )
            overhead = total(one.overhead_s, features)
            whole = line_seconds(overhead, (first, second), exposed=one.exposed, ramp=one.ramp)
            found += [first, second, overhead, whole]
        return found

    return function([variable(name) for name in names], seconds)


def row_features(step: StepFunction, load: ExpertLoad | None) -> tuple[str, ...]:
    """Features that the rows take: the parameters of the pass, and those of the busiest rank behind them."""
    derived = (EXPERT_TOKENS, EXPERTS_TOUCHED) if load is not None else ()
    return (*(name for name in step.parameters if name not in derived), *derived)


def _with_tables(code: str, tables: Mapping[str, Sequence[float]]) -> str:
    if not tables:
        return code
    constants = ",".join(f"{name}={json.dumps(values, allow_nan=False)}" for name, values in tables.items())
    return f"(()=>{{const {constants};return {code}}})()"


def _translated(source: str) -> str:
    (definition,) = ast.parse(source).body
    if not isinstance(definition, ast.FunctionDef):
        raise InputError(what="source of a pass", given=type(definition).__name__, allowed="one function")
    parameters = ",".join(f"{one.arg}=0" for one in definition.args.args)
    return f"function({parameters}){{{''.join(map(_statement, definition.body))}}}"


def _statement(node: ast.stmt) -> str:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return f"const {name}={_expression(value)};"
        case ast.Return(value=ast.Tuple(elts=values)):
            return f"return [{','.join(map(_expression, values))}];"
        case ast.Return(value=ast.expr() as value):
            return f"return {_expression(value)};"
        case _:
            raise _unknown(node)


def _expression(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return repr(float(value)).removesuffix(".0")
        case ast.Name(id=name):
            return name
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"(-{_expression(operand)})"
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=0.5)):
            return f"Math.sqrt({_expression(left)})"
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _SIGNS:
            return f"({_expression(left)}{_SIGNS[type(operation)]}{_expression(right)})"
        case ast.Compare(left=left, ops=[operation], comparators=[right]) if type(operation) in _SIGNS:
            return f"({_expression(left)}{_SIGNS[type(operation)]}{_expression(right)})"
        case ast.IfExp(test=test, body=body, orelse=other):
            return f"({_expression(test)}?{_expression(body)}:{_expression(other)})"
        case ast.Subscript(value=value, slice=index):
            return f"{_expression(value)}[{_expression(index)}]"
        case ast.Call(func=ast.Name(id=name), args=values, keywords=[]) if name in _CALLS:
            return f"{_CALLS[name]}({','.join(map(_expression, values))})"
        case _:
            raise _unknown(node)


def _unknown(node: ast.AST) -> InputError:
    return InputError(
        what="source of a pass", given=ast.unparse(node), allowed="arithmetic that `PassTable.compile` emits"
    )


_BINARY = {
    "add": "{0}+{1}",
    "subtract": "{0}-{1}",
    "multiply": "{0}*{1}",
    "divide": "{0}/{1}",
    "power": "{0}**{1}",
    "minimum": "Math.min({0},{1})",
    "maximum": "Math.max({0},{1})",
    "greater": "{0}>{1}",
    "greater_equal": "{0}>={1}",
    "less": "{0}<{1}",
    "less_equal": "{0}<={1}",
    "bitwise_and": "{0}&&{1}",
    "logical_and": "{0}&&{1}",
}
_UNARY = {
    "negative": "-{0}",
    "sqrt": "Math.sqrt({0})",
    "floor": "Math.floor({0})",
    "ceil": "Math.ceil({0})",
    "absolute": "Math.abs({0})",
    "exp": "Math.exp({0})",
    "log": "Math.log({0})",
    "log2": "Math.log2({0})",
    "rint": "rint({0})",
}
_UFUNCS = {**_BINARY, **_UNARY}


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of one function; an expression that occurred already is not computed twice."""

    names: dict[str, str] = field(default_factory=dict[str, str])

    def number(self, code: str) -> Traced:
        """The number that an expression computes."""
        return Traced(self, self.names.setdefault(code, f"t{len(self.names)}"))

    def body(self) -> str:
        """All of them in order."""
        return "".join(f"const {name}={code};" for code, name in self.names.items())


@dataclass(frozen=True, slots=True, eq=False)
class Traced(NDArrayOperatorsMixin):
    """A number whose value is known where the lines run.

    Args:
        lines: what its value was computed with.
        code: its name there.
    """

    lines: Lines
    code: str

    def _by(self, name: str, *values: Any) -> Traced:
        return self.lines.number(_UFUNCS[name].format(*(literal(value) for value in values)))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *values: Any, **options: Any) -> Any:
        if method != "__call__" or options or ufunc.__name__ not in _UFUNCS:
            return NotImplemented
        return self._by(ufunc.__name__, *values)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, options: Any) -> Any:
        match function.__name__:
            case "where":
                return self.lines.number("{}?{}:{}".format(*(literal(value) for value in args)))
            case "clip":
                return self._by("minimum", self._by("maximum", args[0], args[1]), args[2])
            case _:
                return NotImplemented

    def __bool__(self) -> bool:
        raise InputError(what="a traced number", given="a branch on its value", allowed="np.where")


def literal(value: Any) -> str:
    """A number in JavaScript: the name of a traced one, all digits of another."""
    if isinstance(value, Traced):
        return value.code
    number = float(value)
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0.0 else "(-Infinity)"
    text = str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)
    return f"({text})" if number < 0.0 else text


def function(
    parameters: Sequence[str], formula: Callable[..., Sequence[Any] | Mapping[str, Any] | Any], name: str = ""
) -> str:
    """A formula as a JavaScript function.

    Args:
        parameters: names of its arguments.
        formula: called once, with a traced number for each. What it returns is returned there: a number, an array
            or an object of them.
        name: of the function.
    """
    lines = Lines()
    found = formula(*(Traced(lines, parameter) for parameter in parameters))
    if isinstance(found, Mapping):
        named = cast(Mapping[str, Any], found)
        result = "{" + ",".join(f"{key}:{literal(value)}" for key, value in named.items()) + "}"
    elif isinstance(found, Sequence):
        result = "[" + ",".join(map(literal, cast(Sequence[Any], found))) + "]"
    else:
        result = literal(found)
    return f"function {name}({','.join(parameters)}){{{lines.body()}return {result}}}"

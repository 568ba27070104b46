"""A compiled pass as JavaScript: the statements that `PassTable.compile` emits, translated one by one.

The page computes with it, frame by frame, what a server would; no formula is written a second time. Row by row the same
is traced (see `rackline.passes.trace`) from `passes.line` and the numbers of the rows.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence

from rackline.errors import InputError
from rackline.passes.compile import StepFunction, experts_source, variable
from rackline.passes.features import EXPERT_TOKENS, EXPERTS_TOUCHED, ONE, FloatLike
from rackline.passes.line import line_seconds, total
from rackline.passes.numbers import RowNumbers
from rackline.passes.routing import ExpertLoad
from rackline.passes.trace import function

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
    tables = {"loads": load.tokens_per_token.tolist(), "touches": load.touched.tolist()}
    return _with_tables(_translated(experts_source(load)), tables)


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

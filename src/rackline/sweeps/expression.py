"""Arithmetic of columns: derived quantities and constraints of a sweep, texts that are data and never code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rackline.errors import InputError, nearest_names
from rackline.passes.features import Array

LONGEST = 1000  # characters of an expression
_FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "min": (np.minimum, 2),
    "max": (np.maximum, 2),
    "sqrt": (np.sqrt, 1),
    "exp": (np.exp, 1),
    "log": (np.log, 1),
    "log2": (np.log2, 1),
    "log10": (np.log10, 1),
    "abs": (np.abs, 1),
    "floor": (np.floor, 1),
    "ceil": (np.ceil, 1),
    "where": (np.where, 3),
}
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
    ast.Mod: np.mod,
    ast.USub: np.negative,
    ast.UAdd: np.positive,
    ast.Not: np.logical_not,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_TESTS = (ast.Compare, ast.BoolOp)
_ALLOWED = (
    f"numbers and names of columns with + - * / ** %, < <= > >= == !=, and, or, not, and {', '.join(_FUNCTIONS)}; "
    "quantities are in SI units"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """An expression over columns.

    Args:
        text: as it was written.
        names: columns that it reads.
        is_test: whether it is true or false.

    Example:
        >>> found = read_expression("usd * 2 + min(a, b)", "cost")
        >>> float(found.value({"usd": 1.0, "a": 3.0, "b": 4.0}))
        5.0
    """

    text: str
    names: tuple[str, ...]
    is_test: bool

    def value(self, columns: Mapping[str, Any]) -> Array:
        """The expression of these columns, arrays that broadcast together; what is not a number is NaN.

        Args:
            columns: name → array or scalar.
        """
        with np.errstate(all="ignore"):
            return np.asarray(_value(ast.parse(self.text, mode="eval").body, columns))


def read_expression(text: Any, where: str) -> Expression:
    """Read an expression.

    Args:
        text: such as "usd_per_mtok_output * 1.2".
        where: which it is, for errors.

    Raises:
        InputError: anything but arithmetic of columns.
    """
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST:
        raise InputError(what=where, given=text, allowed=f"an expression as a text, of {_ALLOWED}")
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(what=where, given=text, allowed=_ALLOWED) from None
    names: dict[str, None] = {}
    _check(body, text, where, names)
    return Expression(text=text.strip(), names=tuple(names), is_test=_is_test(body))


def check_columns(expression: Expression, known: Iterable[str], where: str) -> None:
    """Refuse an expression that reads a column which is not there.

    Raises:
        InputError: with the nearest name.
    """
    there = list(known)
    for name in expression.names:
        if name not in there:
            near = nearest_names(name, there, 1)
            raise InputError(what=where, given=name, allowed=", ".join(there), nearest=near[0] if near else None)


def _is_test(node: ast.AST) -> bool:
    return isinstance(node, _TESTS) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


def _column(node: ast.AST) -> str | None:
    """The name of a column, which may have dots and numbers of list entries; None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = _column(node.value)
        return None if head is None else f"{head}.{node.attr}"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and type(node.slice.value) is int:
        head = _column(node.value)
        return None if head is None else f"{head}.{node.slice.value}"
    return None


def _check(node: ast.AST, text: str, where: str, names: dict[str, None], depth: int = 0) -> None:
    refused = InputError(what=where, given=text, allowed=_ALLOWED)
    if depth > 50:
        raise refused
    column = _column(node)
    if column is not None:
        names[column] = None
        return
    inside: list[ast.expr] = []
    match node:
        case ast.Constant(value=value) if isinstance(value, int | float) and not isinstance(value, bool):
            return
        case ast.BinOp() if type(node.op) in _OPERATORS:
            inside = [node.left, node.right]
        case ast.UnaryOp() if type(node.op) in _OPERATORS:
            inside = [node.operand]
        case ast.BoolOp():
            inside = node.values
        case ast.Compare() if all(type(one) in _OPERATORS for one in node.ops):
            inside = [node.left, *node.comparators]
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS:
            if len(node.args) != _FUNCTIONS[name][1]:
                raise InputError(what=where, given=text, allowed=f"{_FUNCTIONS[name][1]} values in {name}(...)")
            inside = node.args
        case _:
            raise refused
    for one in inside:
        _check(one, text, where, names, depth + 1)


def _value(node: ast.AST, columns: Mapping[str, Any]) -> Any:
    column = _column(node)
    if column is not None:
        return columns[column]
    match node:
        case ast.Constant():
            return np.float64(float(node.value))  # pyright: ignore[reportArgumentType] - checked when it was read
        case ast.BinOp():
            return _OPERATORS[type(node.op)](_value(node.left, columns), _value(node.right, columns))
        case ast.UnaryOp():
            return _OPERATORS[type(node.op)](_value(node.operand, columns))
        case ast.BoolOp():
            parts = [np.asarray(_value(one, columns), dtype=bool) for one in node.values]
            join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            found = parts[0]
            for one in parts[1:]:
                found = join(found, one)
            return found
        case ast.Compare():
            values = [_value(one, columns) for one in (node.left, *node.comparators)]
            tests = [_OPERATORS[type(op)](a, b) for op, a, b in zip(node.ops, values, values[1:], strict=False)]
            found = tests[0]
            for one in tests[1:]:
                found = np.logical_and(found, one)
            return found
        case ast.Call(func=ast.Name(id=name)):
            return _FUNCTIONS[name][0](*(_value(one, columns) for one in node.args))
        case _:
            raise TypeError(f"{ast.dump(node)} was not checked")

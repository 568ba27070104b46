"""A question as it is typed: the words of a command, or a call in Python."""

from __future__ import annotations

import shlex
from typing import Any, cast

from rackline.api.option import Option
from rackline.api.question import Question, options
from rackline.api.verbs import function_name


def flag_of(name: str, option: Option) -> str:
    """The long flag of an option; an argument has none."""
    return "" if option.positional else option.flag or f"--{name.replace('_', '-')}"


def command_of(question: Question) -> str:
    """The command that asks the same.

    Example:
        >>> from rackline.api.fit import FitQuestion
        >>> command_of(FitQuestion("llama-3.1-8b", on="dgx-h100", context="32k"))
        'rackline fit llama-3.1-8b --on dgx-h100 --context 32000'
    """
    known = options(type(question))
    words = ["rackline", question.ask]
    for name, value in question.changed().items():
        one = known[name]
        flag = flag_of(name, one)
        if one.kind == "switch":
            words.append(flag)
            continue
        if isinstance(value, tuple) and not one.is_quantity:
            for part in cast("tuple[Any, ...]", value):
                words += [*([flag] if flag else []), str(part)]
        elif value is not None:
            words += [*([flag] if flag else []), one.write(value)]
    return shlex.join(words)


def python_of(question: Question) -> str:
    """The call that asks the same, where `rl` is `rackline`.

    Example:
        >>> from rackline.api.fit import FitQuestion
        >>> python_of(FitQuestion("llama-3.1-8b", on="dgx-h100", context="32k"))
        "rl.fit('llama-3.1-8b', on='dgx-h100', context=32000)"
    """
    known = options(type(question))
    words: list[str] = []
    for name, value in question.changed().items():
        words.append(_python(value) if known[name].positional else f"{name}={_python(value)}")
    return f"rl.{function_name(question.ask)}({', '.join(words)})"


def _python(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_python(one) for one in cast('tuple[Any, ...]', value))}]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return repr(int(value))
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return repr(getattr(value, "name", value))

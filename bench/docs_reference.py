"""The pages of the reference, made from the code: `pages()` gives their Markdown by path.

A page for each command comes from the dataclass of its question, with units, bounds, defaults and help; a page for
each package of the library names what it exports, and mkdocstrings writes their docstrings there.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from cyclopts import Parameter

import rackline
from rackline.api.answer import find_verb
from rackline.api.question import Option, options, written_defaults
from rackline.api.verbs import GROUPS, entries
from rackline.cli import main

DOCS = Path(__file__).resolve().parents[1] / "docs"
CITED = re.compile(r"`(rackline(?:\.\w+)+)`")

# package -> what its page is about; the lowest layer first
PACKAGES = {
    "arch": "a model and what one token of it costs",
    "hardware": "chips, links, clusters, racks, memory tiers",
    "passes": "the table of a pass and its time",
    "parallel": "layouts, precisions, deployments",
    "serving": "decode, prefill, steady state, capacity",
    "simulation": "requests in, percentiles out",
    "training": "a training step, its memory and schedules",
    "scaling": "laws of loss, compute and lifetime",
    "pricing": "from cost to price sheet and back",
    "search": "layouts, limits, the plan",
    "posttraining": "reinforcement learning",
    "fitting": "calibrations from measured kernels",
    "validation": "measured cases and the scoreboard",
    "units": "texts with units and SI numbers",
}


@cache
def pages() -> dict[str, str]:
    """Path below docs/reference -> Markdown."""
    found = {"commands/index.md": commands_page(), "python/index.md": functions_page()}
    for name in main.commands():
        found[f"commands/{name}.md"] = command_page(name)
    for name, about in PACKAGES.items():
        found[f"python/{name}.md"] = package_page(name, about)
    return found


def commands_page() -> str:
    """All commands, by group."""
    lines = [
        "# Commands",
        "",
        "Each command reads names or files and prints a table; `--json` prints the same for programs, in SI units. "
        "Quantities carry units: `30ms`, `4k`, `128Ki`, `141GB`, `3.35TB/s`. Bad input ends with exit code 2 and one "
        "line that says what was given, what is allowed, and what comes nearest. The same questions are "
        "[functions in Python](../python/index.md).",
    ]
    for title in GROUPS:
        listed = {name: one for name, one in main.commands().items() if one.group == title}
        lines += ["", f"## {title}", "", "| command | answers |", "|---|---|"]
        lines += [f"| [`{name}`]({name}.md) | {one.line} |" for name, one in listed.items()]
    return "\n".join([*lines, ""])


def command_page(name: str) -> str:
    """One command: usage, options, examples."""
    entry = main.commands()[name]
    function = getattr(main, entry.function + main.ALL_OPTIONS)
    known = options(find_verb(name).question) if name in entries() else {}
    asked = inspect.signature(function, eval_str=True).parameters.values()
    about = inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    words = [one.name.upper() for one in asked if _is_argument(one)]
    lines = [
        f"# {name}",
        "",
        about,
        "",
        "```text",
        " ".join(["rackline", "sweep show" if name == "sweep-show" else name, *words, "[OPTIONS]"]),
        "```",
        "",
        "| option | meaning |",
        "|---|---|",
    ]
    shown = [one for one in asked if not (known.get(one.name) or _SHOWN).hidden]
    shown.sort(key=lambda one: (not _is_argument(one), one.default is not inspect.Parameter.empty))
    lines += [_option_row(one, known.get(one.name)) for one in shown]
    if name in entries():
        defaults = written_defaults(find_verb(name).question)
        python = ", ".join(
            f"{key}=..." if not one.positional else key for key, one in known.items() if key not in defaults
        )
        lines += ["", f"In Python: `rl.{entry.function}({python})`, with the options as keywords."]
    lines += ["", "## Examples", "", "```text", inspect.cleandoc(_example_lines(entry.examples)), "```", ""]
    return "\n".join(lines)


_SHOWN = Option(kind="text", help="")


def _example_lines(text: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in text.strip("\n").splitlines())


def _is_argument(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


def _option_row(parameter: inspect.Parameter, option: Option | None) -> str:
    """A row of the table of options."""
    said: Any = next((one for one in getattr(parameter.annotation, "__metadata__", ()) if _is_parameter(one)), None)
    if _is_argument(parameter):
        flags = parameter.name.upper()
    else:
        names = said.name if said is not None and said.name else (f"--{parameter.name.replace('_', '-')}",)
        flags = ", ".join([names] if isinstance(names, str) else names)
    default = parameter.default
    if default is inspect.Parameter.empty:
        shown = "required" if parameter.kind is not inspect.Parameter.VAR_POSITIONAL else "one or more"
    elif default is None or default is False:
        shown = ""
    else:
        shown = f"default `{default}`"
    unit = f"in {option.unit}" if option is not None and option.unit not in ("-", "1", "count") else ""
    help_text = str(said.help if said is not None else "")
    if option is not None and option.choices and not all(choice in help_text for choice in option.choices):
        help_text += f" ({', '.join(option.choices)})"
    notes = ", ".join(note for note in (shown, unit) if note)
    return f'| <code class="option-name">{flags}</code> | {_cell(help_text)}{f" ({notes})" if notes else ""} |'


def _is_parameter(value: Any) -> bool:
    return isinstance(value, Parameter)


def _cell(text: str) -> str:
    text = re.sub(r"([\\|*_\[\]])", r"\\\1", " ".join(text.split()))
    return text.replace("<", "&lt;")


def functions_page() -> str:
    """What `import rackline as rl` hands out."""
    lines = [
        "# Python",
        "",
        "```text",
        inspect.cleandoc(rackline.__doc__ or ""),
        "```",
        "",
        "## Questions",
        "",
        "| function | answers | options |",
        "|---|---|---|",
    ]
    for name, one in entries().items():
        lines.append(f"| `rl.{one.function}` | {one.line} | [{name}](../commands/{name}.md) |")
    asked = {one.function for one in entries().values()}
    lines += ["", "## Objects", ""]
    for name in rackline.__all__:
        if name not in asked:
            lines += [f"::: {_path_of(getattr(rackline, name), f'rackline.{name}')}", ""]
    lines += ["## Packages", "", "| package | holds |", "|---|---|"]
    lines += [f"| [`rackline.{name}`]({name}.md) | {about} |" for name, about in PACKAGES.items()]
    return "\n".join([*lines, ""])


def package_page(name: str, about: str) -> str:
    """What a package exports, and what the pages of docs/ name of it."""
    package = importlib.import_module(f"rackline.{name}")
    handed_out = {_path_of(getattr(rackline, one), "") for one in rackline.__all__}
    found = {path for path in cited_names().values() if path.startswith(f"rackline.{name}.")}
    found |= set(_exported(package))
    text = inspect.cleandoc(package.__doc__ or "")
    lines = [f"# rackline.{name}: {about}", "", text.partition("\n\n")[0].replace("\n", " "), ""]
    for path in sorted(found - handed_out, key=lambda one: (one.rpartition(".")[0], one)):
        lines += [f"::: {path}", ""]
    return "\n".join(lines)


@cache
def cited_names() -> dict[str, str]:
    """Names of objects that pages of docs/ write as `rackline.x.y` -> where each stands in the reference.

    Modules, and what lies in packages without a page, have no place there.

    Raises:
        ValueError: no such object.
    """
    found: dict[str, str] = {}
    for page in sorted(DOCS.rglob("*.md")):
        for name in CITED.findall(page.read_text(encoding="utf-8")):
            path = _path_of(resolve(name), name)
            if not inspect.ismodule(resolve(name)) and path.split(".")[1] in PACKAGES:
                found[name] = path
    return found


def resolve(name: str) -> Any:
    """The object of a dotted name.

    Raises:
        ValueError: no such object.
    """
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                raise ValueError(f"{name}: {'.'.join(parts[:end])} has no {part}")
            found = getattr(found, part)
        return found
    raise ValueError(f"{name}: no such module")


def _exported(package: ModuleType) -> Iterator[str]:
    for name in getattr(package, "__all__", ()):
        found = getattr(package, name)
        if callable(found) and str(getattr(found, "__module__", "")).startswith("rackline."):
            yield _path_of(found, f"{package.__name__}.{name}")


def _path_of(found: Any, name: str) -> str:
    """Where an object is defined; constants and aliases, which do not know it, keep their name."""
    module, own = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    if inspect.ismodule(found) or not own or not str(module).startswith("rackline"):
        return name
    return f"{module}.{own}"

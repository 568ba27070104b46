"""The command line: `rackline COMMAND ...`. Commands are loaded when they are called."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group
from cyclopts.exceptions import MissingArgumentError, UnknownCommandError, UnknownOptionError, UnusedCliTokensError

from rackline.api.verbs import GROUPS, Entry
from rackline.cli.commands import ALL_OPTIONS, commands
from rackline.cli.glossary import help_text
from rackline.cli.screen import FailedCheckError, drop_output, screen
from rackline.errors import RacklineError, nearest_names
from rackline.extras import missing_extra

_LONGEST_LINE = 2000  # characters of an error


def build_app(*, all_options: bool = False) -> App:
    """The commands and their help; their modules are imported when they are called.

    Args:
        all_options: whether the help of a command shows every option.
    """
    app = App(
        name="rackline",
        help="Seconds, bytes, chips and dollars of training and serving large language models, from first principles.",
        help_epilogue=f"{_EXAMPLES}\n{help_text()}",
        help_format="plaintext",
        version=_version,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    groups = {title: Group(title, sort_key=place) for place, title in enumerate(GROUPS)}
    for order, (name, one) in enumerate(commands().items()):
        module = f"rackline.cli.commands:{one.function}"
        app.command(
            f"{module}{ALL_OPTIONS}" if all_options and one.usual else module,
            name=name,
            help=one.line,
            help_epilogue=_epilogue(name, one, all_options=all_options),
            group=groups[one.group],
            sort_key=order,
        )
    return app


_EXAMPLES = """Examples:

    rackline plan deepseek-v3 --on gb200-nvl72 \\
      --input 4k --output 1k --tpot 30ms --ttft 2s
    rackline explain llama-3.1-70b --on dgx-h100 --batch 64 --context 8k
    rackline models meta-llama/Llama-3.1-70B

Each command has --help, and --json for programs.
Quantities carry units: 30ms, 4k, 128Ki, 141GB, 3.35TB/s.
"""
_FIRST_EXAMPLES = 2  # in the help of a command that hides options


def _epilogue(name: str, one: Entry, *, all_options: bool) -> str:
    """What stands below the options of a command: its examples, and the terms or where the other options are."""
    if all_options:
        return f"Examples:\n{one.examples}\n{help_text()}"
    if not one.usual:
        return f"Examples:\n{one.examples}"
    head, *examples = one.examples.split("    rackline ")
    first = "    rackline ".join([head, *examples[:_FIRST_EXAMPLES]])
    return f"Examples:\n{first}\nAll options and examples: rackline {name} --help-all\n"


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; the entry point of `rackline`.

    Args:
        arguments: words after `rackline`; those of the process by default.

    Returns:
        0, also when nothing fits; 2 on bad input, with one line on standard error; 130 when interrupted.
    """
    _write_utf8()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:2] == ["sweep", "show"]:
            given[:2] = ["sweep-show"]
        all_options = "--help-all" in given
        app = build_app(all_options=all_options)
        app(
            ["--help" if word == "--help-all" else word for word in given] if all_options else given,
            exit_on_error=False,
            print_error=False,
            verbose=False,
            console=screen(),
        )
        sys.stdout.flush()
    except RacklineError as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        refused = missing_extra(error, what=f"rackline {given[0]}" if given else "rackline")
        if not isinstance(refused, RacklineError):
            raise
        return _refuse(str(refused))
    except FailedCheckError as failed:
        sys.stdout.flush()
        return int(failed.args[0])
    except CycloptsError as error:
        return _refuse(_words(error, given))
    except BrokenPipeError:
        drop_output()
    except KeyboardInterrupt:
        return 130
    except RecursionError:
        return _refuse("input: got values nested too deeply, allowed: a few hundred levels")
    except OSError as error:
        place = error.filename or "standard output"
        drop_output()  # what is left in its buffer cannot be written at the end either
        return _refuse(f"{place}: {error.strerror or type(error).__name__}")
    return 0


def _refuse(message: str) -> int:
    line = " ".join(message.split())
    print(f"error: {line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + ' ...'}", file=sys.stderr)
    return 2


def _words(error: CycloptsError, given: list[str]) -> str:
    """What cyclopts has to say, in one line of our form."""
    command = " ".join(error.command_chain or ())
    if isinstance(error, UnknownCommandError):
        word = next((part for part in given if not part.startswith("-")), given[0] if given else "")
        known = commands()
        near = nearest_names(word, known, 1)
        nearest = f"; nearest: {near[0]}" if near else ""
        return f"command: got {word!r}, allowed: {', '.join(known)}{nearest}"
    if isinstance(error, UnknownOptionError):
        word = error.token.keyword or error.token.value
        names = [name for argument in error.argument_collection for name in argument.names if name.startswith("--")]
        near = nearest_names(word, names, 1)
        nearest = f"; nearest: {near[0]}" if near else ""
        where = f"rackline {command}: " if command else ""
        return f"{where}option: got {word!r}, allowed: {', '.join(sorted(set(names)))}{nearest}"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.argument.name.lower()
        what = error.argument.parameter.help or "a value"
        return f"rackline {command}: {name}: got nothing, allowed: {what}; see rackline {command} --help"
    if isinstance(error, UnusedCliTokensError):
        words = " ".join(error.unused_tokens or ())
        return f"rackline {command}: got {words!r}, allowed: no more words; see --help"
    return f"{str(error).strip()} See: rackline {command} --help".replace("  ", " ")


def _write_utf8() -> None:
    """Write UTF-8 in any locale; a terminal that cannot show it gets a ? rather than a failure."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = stream.encoding if stream.isatty() else "utf-8"
            stream.reconfigure(encoding=encoding, errors="replace")


def _version() -> str:
    from importlib.metadata import version

    return version("rackline")


if __name__ == "__main__":
    sys.exit(run())

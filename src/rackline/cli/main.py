"""The command line: `rackline COMMAND ...`. Commands are loaded when they are called."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from textwrap import wrap
from typing import Annotated

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.exceptions import MissingArgumentError, UnknownCommandError, UnknownOptionError, UnusedCliTokensError

from rackline.api.verbs import GROUPS, Entry, entries, order
from rackline.cli.screen import Bars, FailedCheckError, drop_output, screen
from rackline.errors import RacklineError, nearest_names
from rackline.late import late, load_optional, missing_extra
from rackline.units import parse_whole

with late:
    from rackline import processes
    from rackline.cli import command
    from rackline.web import app as web_app, asked as web_settings


_TERMS_WIDTH = 14  # characters of a column of the help
_MEANINGS_WIDTH = 60


@dataclass(frozen=True, slots=True)
class Term:
    """A word, or several that belong together, and what it means.

    Args:
        words: as they are written.
        meaning: without a full stop at the end.
        in_help: whether the help of the commands has it.
    """

    words: str
    meaning: str
    in_help: bool = False


TERMS: tuple[Term, ...] = (
    Term(
        words="tp, pp, ep",
        meaning="tensor, pipeline, expert parallelism: degrees of splitting each layer, the layers, the experts over "
        "chips",
        in_help=True,
    ),
    Term(words="cp", meaning="context parallelism: chips that split one long prompt", in_help=True),
    Term(
        words="attention_dp",
        meaning="data-parallel attention: ranks with full attention weights and different requests, which share the "
        "experts",
        in_help=True,
    ),
    Term(
        words="ttft, tpot",
        meaning="time to first token; time per output token after the first",
        in_help=True,
    ),
    Term(
        words="MFU",
        meaning="model FLOP utilisation: the model's FLOP per second over the peak of the chips",
        in_help=True,
    ),
    Term(
        "active parameters", "the parameters that one token is multiplied with; in a mixture of experts, fewer than all"
    ),
    Term("adapter, LoRA", "two small products beside a frozen one, trained for a task; many can share one server"),
    Term("all-gather", "exchange after which each chip holds the parts of all"),
    Term(
        "all-reduce",
        "exchange after which each chip holds the sum of what all had; a reduce-scatter, then an all-gather",
    ),
    Term(
        "all-to-all", "exchange in which each chip has something different for each other one: tokens to their experts"
    ),
    Term("arithmetic intensity", "FLOP of an operation over the bytes that it reads and writes"),
    Term(
        "attention kind",
        "what an attention layer caches and reads: grouped heads, latents, a window, chosen tokens, a state",
    ),
    Term("band", "the range in which 90 % of measured servers of a kind lay around their predictions"),
    Term("batch size", "sequences that take part in one pass"),
    Term("blackboard", "the ideal roofline: peak rates, no overheads, the longest resource alone counts"),
    Term("block", "a fixed number of tokens of KV cache, the unit in which it is given out, found again and evicted"),
    Term("bubble", "time in which a stage of a pipeline waits for others; as a fraction, over the time of the step"),
    Term(
        "calibration",
        "the numbers that turn peaks into what kernels reach on a chip under a stack: overheads and efficiencies",
    ),
    Term("chunked prefill", "a prompt computed in pieces that share passes with decoding sequences"),
    Term("closed loop", "a load in which a fixed number of users each wait for an answer before they ask again"),
    Term("cluster", "chips and the links between them, as levels: scale-up domains and the network beyond"),
    Term(
        "compute-optimal", "the number of parameters and tokens with the least loss for a given number of training FLOP"
    ),
    Term("context tier", "prompt lengths with one price"),
    Term(
        "CUDA graph", "the kernels of a pass recorded and launched at once, so that the host does not slow small passes"
    ),
    Term("decode", "passes in which each running sequence gains a token"),
    Term("disaggregation", "prefill and decode on separate pools of chips; attention and experts on separate chips"),
    Term("dp", "data parallelism: copies of the model with different sequences"),
    Term("draft model", "the small model, or head, that guesses tokens for speculative decoding"),
    Term("drain time", "capacity of a memory over its bandwidth: the time to read all of it once"),
    Term("eviction", "giving up cached blocks that nobody uses, to make room"),
    Term("expert", "one of many feed-forward blocks of a layer, of which each token visits a few"),
    Term("fallback", "a number taken from another stack, chip or generation where nothing was measured; always marked"),
    Term("fleet", "the replicas that serve a stated traffic"),
    Term("FLOP, FLOP/s", "a floating-point operation, a multiply-add is two; their rate"),
    Term("GB, GiB", "10⁹ bytes; 2³⁰ bytes"),
    Term(
        "goodput",
        "the part of the work, or of the requests, that counts: not repeated after a failure, or within the limits",
    ),
    Term(
        "GQA, MQA", "grouped-query attention: several query heads share a key and a value; multi-query: all of them do"
    ),
    Term("HBM", "high-bandwidth memory, next to the chip; here, the main memory of any chip"),
    Term(
        "held out",
        "left out of a fit and predicted by it: models, chips, laboratories; what an error on new ones looks like",
    ),
    Term("kernel", "a program on the chip that does one operation, such as a product or attention"),
    Term("KV cache", "what a sequence leaves behind in attention layers for the tokens after it"),
    Term("launch", "starting a kernel; it takes microseconds of the host for any kernel"),
    Term("layout", "the degrees of parallelism of a deployment, such as tp=4,pp=2"),
    Term(
        "lifetime-optimal",
        "the number of parameters and tokens with the least compute for training and later use, at a given loss",
    ),
    Term("Little's law", "mean number in a system = rate of arrivals × mean time in it"),
    Term("memory tier", "HBM, host memory, flash or disk: capacity, bandwidth and price of a place for caches"),
    Term("micro-batch", "part of a batch that goes through a pipeline by itself"),
    Term(
        "mixture of experts, MoE",
        "a model whose feed-forward blocks are experts; a router chooses a few for each token",
    ),
    Term("MLA", "multi-head latent attention: a small latent per token is cached instead of keys and values"),
    Term("multi-token prediction, MTP", "a light layer that guesses tokens ahead, for the model to verify"),
    Term("NVFP4, MXFP4", "4-bit numbers with a scale for each 16 or 32 of them; MXFP8 likewise with 8 bits"),
    Term("open loop", "a load in which requests arrive on their own, however long others take"),
    Term("p50, p90, p99", "the value that 50, 90 or 99 % of requests stay below"),
    Term("packed sequences", "several samples in one sequence, which do not attend to each other"),
    Term("pass", "one walk of a batch through all layers: a decode step, a prefill, or both mixed"),
    Term("pool", "replicas with one job, such as prefill"),
    Term("preemption", "taking the cache of a running request away for others; it is recomputed later"),
    Term("prefill", "the pass over a prompt, which fills its KV cache and yields the first token"),
    Term("prefix caching", "keeping the KV cache of the beginning that prompts share"),
    Term("price sheet", "what an API charges: by mode, context tier, input, output, cached input, cache writes"),
    Term("PUE", "power of a site over power of its machines"),
    Term("quantisation, W4A16", "storing or computing in fewer bits; here, 4-bit weights and 16-bit activations"),
    Term("rank", "one member of a parallel group; a chip, or the chips that hold one copy of the attention weights"),
    Term("recompute", "activations dropped in the forward pass and recomputed in the backward pass"),
    Term("reduce-scatter", "exchange after which each chip holds its part of the sum of what all had"),
    Term("replica", "chips that together hold one copy of a model and serve requests"),
    Term(
        "ridge point",
        "the arithmetic intensity from which a chip is bound by compute: peak FLOP/s over memory bandwidth",
    ),
    Term("rollout", "generating answers that reinforcement learning then trains on"),
    Term("roofline", "the time of an operation as the longer of its compute and its memory traffic"),
    Term("routing law", "how tokens spread over experts: balanced, at random, or with popular experts"),
    Term("saturation", "the rate beyond which a queue grows without bound"),
    Term("scale-up, scale-out", "fast links within a domain such as a rack; the network between domains"),
    Term("SLO", "a latency that a stated share of requests must keep"),
    Term("slot", "a place for one running sequence in an engine"),
    Term("sparsity", "said as total_over_active: all parameters over active ones, at least 1"),
    Term("speculative decoding", "a cheap draft of several tokens, which one pass of the model verifies"),
    Term(
        "stack",
        "a serving or training engine with what it does around its kernels: vLLM, SGLang, TensorRT-LLM, Megatron",
    ),
    Term("steady state", "what a server settles into under a load that does not change"),
    Term("straggler", "the slowest of ranks that wait for each other"),
    Term("token budget", "the most tokens, of prompts and decodes together, that an engine puts into one pass"),
    Term("torus", "links to neighbours along each axis, the ends joined, instead of a switch"),
    Term("two-batch overlap", "two halves of a batch in turn, one computing while the other communicates"),
    Term("utilisation", "share of the time, or of the chips, for which work is there"),
    Term("what binds", "the resource whose time is the longest: compute, HBM, scale-up, scale-out or overhead"),
    Term("what-if", "an answer with one number changed"),
    Term("ZeRO, FSDP", "states of the optimiser, gradients and parameters split over the data-parallel chips"),
)
"""All terms; `--help` shows those with `in_help`, in this order."""


def help_text() -> str:
    """The glossary as the help shows it, with the words in a column."""
    lines = ["Glossary:", ""]
    for term in TERMS:
        if term.in_help:
            first, *others = wrap(term.meaning, _MEANINGS_WIDTH)
            lines.append(f"    {term.words:<{_TERMS_WIDTH}}{first}")
            lines += [f"    {'':<{_TERMS_WIDTH}}{line}" for line in others]
    return "\n".join([*lines, ""])


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
    for place, (name, one) in enumerate(commands().items()):
        module = f"rackline.cli.main:{one.function}"
        app.command(
            f"{module}{ALL_OPTIONS}" if all_options and one.usual else module,
            name=name,
            help=one.line,
            help_epilogue=_epilogue(name, one, all_options=all_options),
            group=groups[one.group],
            sort_key=place,
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
        0, also when nothing fits; 1 where a check failed or no request was answered; 2 on bad input, with one line on
        standard error; 130 when interrupted.
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
        return _unknown("command", word, list(commands()))
    if isinstance(error, UnknownOptionError):
        names = {name for argument in error.argument_collection for name in argument.names if name.startswith("--")}
        where, word = f"rackline {command}: " if command else "", error.token.keyword or error.token.value
        elsewhere = [one.name for one in entries().values() if word.removeprefix("--") in one.usual]
        if elsewhere and word.startswith("--"):
            return f"{where}option: got {word!r}, which `rackline {elsewhere[0]}` has; see rackline {command} --help"
        return f"{where}{_unknown('option', word, sorted(names))}"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.argument.name.lower()
        what = error.argument.parameter.help or "a value"
        return f"rackline {command}: {name}: got nothing, allowed: {what}; see rackline {command} --help"
    if isinstance(error, UnusedCliTokensError):
        words = " ".join(error.unused_tokens or ())
        if f"--launch {words}" in " ".join(given):
            return f"rackline {command}: --launch takes no name: --engine {words} --launch"
        return f"rackline {command}: got {words!r}, allowed: no more words; see --help"
    return f"{str(error).strip()} See: rackline {command} --help".replace("  ", " ")


def _unknown(what: str, word: str, known: Sequence[str]) -> str:
    near = nearest_names(word, known, 1)
    return f"{what}: got {word!r}, allowed: {', '.join(known)}" + (f"; nearest: {near[0]}" if near else "")


def _write_utf8() -> None:
    """Write UTF-8 in any locale; a terminal that cannot show it gets a ? rather than a failure."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = stream.encoding if stream.isatty() else "utf-8"
            stream.reconfigure(encoding=encoding, errors="replace")


def _version() -> str:
    from importlib.metadata import version

    return version("rackline")


ALL_OPTIONS = "_with_all_options"
"""Behind the name of a command: the same command, whose help shows every option."""


@cache
def commands() -> dict[str, Entry]:
    """What the help says of each command, in its order: the questions, and `web`, which is none."""
    return dict(sorted({**entries(), "web": _WEB}.items(), key=lambda each: order(each[1])))


def __getattr__(name: str) -> Callable[..., None]:
    """The command of a question by its Python name; `web` has one help."""
    wanted = name.removesuffix(ALL_OPTIONS)
    if wanted == _WEB.function:
        return web
    for known, one in entries().items():
        if one.function == wanted:
            return command.command(known, all_options=wanted != name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_MOST_WORKERS = 64
_WEB = Entry(
    group="Learn",
    place=2,
    line="The page with its figures, and the HTTP API, on this machine.",
    name="web",
    function="web",
    examples="""
    rackline web
    rackline web --port 8080 --no-browser
""",
)


def web(
    *,
    port: Annotated[str, Parameter(help="port to listen on; 0 takes any that is free")] = "8321",
    browser: Annotated[bool, Parameter(help="open the page in the browser")] = True,
    workers: Annotated[
        str | None, Parameter(help="processes that answer; one for each core, and at least 2, by default")
    ] = None,
    host: Annotated[
        str, Parameter(help="address to listen on; any but the default lets others ask this machine")
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        Parameter(help="name under which others reach it, such as that of a proxy; may be repeated", negative=()),
    ] = None,
    export: Annotated[
        str | None, Parameter(help="write the page to a folder that works without a server, and end")
    ] = None,
) -> None:
    """Serve the page and the HTTP API on this machine, until Ctrl-C; or write the page to a folder."""
    if export is not None:
        _export(export)
        return
    for package in ("fastapi", "uvicorn"):
        load_optional(package, what="rackline web")  # before a socket is open
    num = max(processes.usable_cores(), 2)
    settings = web_settings.Settings(
        host=host,
        port=int(parse_whole(port, name="--port", minimum=0, maximum=65535, zero_allowed=True)),
        workers=num if workers is None else int(parse_whole(workers, name="--workers", maximum=_MOST_WORKERS)),
        names=tuple(name or ()),
    )
    if not settings.is_local:
        print(
            f"warning: anyone who reaches {host} can ask this server: it has no log-in and no encryption; put a proxy "
            "with both in front of it",
            file=sys.stderr,
        )
    web_app.serve(settings, browser=browser)


def _export(folder: str) -> None:
    """Write the page, with a bar for its data files."""
    load_optional("jinja2", what="rackline web --export")  # before a folder is made
    with Bars().counting("writing the page", "written") as tell:
        files = web_app.export(folder, tell)
    screen().print(f"{len(files)} files written; open {files[-1]}")

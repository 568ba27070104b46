"""The command line: `rackline COMMAND ...`. Commands are loaded when they are called."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError
from cyclopts.exceptions import MissingArgumentError, UnknownCommandError, UnknownOptionError, UnusedCliTokensError

from rackline.cli.screen import FailedCheckError, screen
from rackline.errors import RacklineError, nearest_names

_COMMANDS = {
    "plan": "The cheapest way to serve a model on a cluster under latency limits.",
    "train": "Layout, step time, memory, days and dollars of a training run.",
    "simulate": "Serve a trace or made traffic and print percentiles of latency.",
    "explain": "One pass row by row: formula, numbers put in, seconds, what binds.",
    "fit": "What fits: weights per chip, room for KV, largest context and concurrency by layout.",
    "tiers": "Where to keep the KV cache of a prompt, for how long, and what to charge for it.",
    "price": "What to charge for a deployment: input, output, cache, batch and fast modes.",
    "infer-prices": "What public prices reveal: parameters, KV bytes, batches, memory tiers.",
    "budget": "How large a model to train, on how many tokens, when it is going to be used.",
    "validate": "Predict measured cases and print how far off the predictions are.",
    "calibrate": "Fit calibrations to tables of measured operations, with their errors.",
    "lecture": "Is what the lecture says true, and where does it stop being true?",
    "chips": "List the chips, or show one with the sources of its numbers.",
    "clusters": "List the clusters, or show one with the sources of its numbers.",
    "models": "List the models, or show one: parameters, FLOP and KV cache of a token.",
    "memory": "List the memory tiers, or show one with the sources of its numbers.",
    "compare": "Chips, clusters, models or deployments side by side.",
}

_EXAMPLES = {
    "": """Examples:

    rackline plan deepseek-v3 --on gb200-nvl72 \\
      --input 4k --output 1k --tpot 30ms --ttft 2s
    rackline explain llama-3.1-70b --on dgx-h100 --batch 64 --context 8k
    rackline models meta-llama/Llama-3.1-70B

Each command has --help, and --json for programs.
Quantities carry units: 30ms, 4k, 128Ki, 141GB, 3.35TB/s.
""",
    "plan": """Examples:

    rackline plan deepseek-v3 --on gb200-nvl72 \\
      --input 4k --output 1k --tpot 30ms --ttft 2s
    rackline plan llama-3.1-70b --on dgx-h100 \\
      --input 1k --output 500 --precision fp8 --layout tp=4
    rackline plan gpt-oss-120b --on dgx-b200 \\
      --input 8k --output 1k --set hbm_bytes_per_s=20TB/s
    rackline plan deepseek-v3 --on gb200-nvl72 --chips 16 \\
      --prefill-on h100-96 --input 4k --output 1k --precision fp8
    rackline plan deepseek-v3 --on gb200-nvl72 --input 4k --output 1k \\
      --tpot 30ms --traffic 50M --peak-over-mean 1.8 --launch auto
    rackline plan llama-3.1-70b --on dgx-h200 --input 2k --output 500 \\
      --what-if hbm_bandwidth=3TB/s:12TB/s:4 --plot what-if.svg
    rackline plan ./config.json --on dgx-h200 --input 4k --output 1k --json
""",
    "train": """Examples:

    rackline train llama-3.1-405b --on dgx-h100 --chips 16384 \\
      --tokens 15.6T --global-batch 16M
    rackline train deepseek-v3 --on gb200-nvl72 --chips 2304 \\
      --global-batch 63M --seq 4k --precision mxfp8 --plot pipeline.html --plot-kind pipeline
    rackline train llama-3.1-70b --on dgx-h100 --chips 64 \\
      --global-batch 1M --layout tp=4,pp=4 --recompute full --json
""",
    "simulate": """Examples:

    rackline simulate llama-3.1-70b --on dgx-h100 --layout tp=4 \\
      --rate 4 --input 2k --output 256 --slo ttft=2s,tpot=50ms@p99
    rackline simulate deepseek-v3 --on dgx-h200 --layout tp=8,ep=8 \\
      --trace mooncake_conversation_trace.jsonl --prefix-caching
    rackline simulate llama-3.1-8b --on dgx-h100 --chips 1 \\
      --rate 5 --input 1k --output 200 --capacity ttft=1s,tpot=30ms@p99
    rackline simulate llama-3.1-8b --on dgx-h100 --chips 2 --users 64 \\
      --input 1k --output 200 --compare policy=prefill-first
""",
    "explain": """Examples:

    rackline explain llama-3.1-70b --on dgx-h100 --batch 64 --context 8k
    rackline explain deepseek-v3 --on gb200-nvl72 \\
      --batch 512 --context 4k --layout attention_dp=8,ep=8
    rackline explain qwen3-32b --on dgx-h100 \\
      --batch 0 --context 1 --prefill 4k --trace pass.json
""",
    "fit": """Examples:

    rackline fit llama-3.1-70b --on dgx-h100 --context 32k
    rackline fit deepseek-v3 --on dgx-h200 \\
      --context 32k --concurrency 64 --precision fp8
""",
    "tiers": """Examples:

    rackline tiers deepseek-v3 --on dgx-h200 --prompt 16k
    rackline tiers llama-3.1-70b --on dgx-h100 \\
      --held 5min --held 1h --reuses 10 --within 200ms --plot tiers.svg
""",
    "price": """Examples:

    rackline price llama-3.1-70b --on dgx-h100 --precision fp8 --layout tp=8
    rackline price deepseek-v3 --on dgx-h200 --contexts 32k,128k \\
      --margin 50% --utilisation 40% --purchase 40000 --pue 1.2 --json
""",
    "infer-prices": """Examples:

    rackline infer-prices gemini-3.1-pro
    rackline infer-prices deepseek-v3
    rackline infer-prices claude-opus-4.6 --chip gb200 --margin 20%..100%
    rackline infer-prices --all --plot prices.html
""",
    "budget": """Examples:

    rackline budget --quality-of 70b@15T --serve 50M --months 2
    rackline budget --quality-of 70b@15T --serve 50M --months 2 \\
      --rl 10T --moe 32 --plot budget.svg
    rackline budget --loss 1.95 --serve 1M --unique-tokens 20T --json
    rackline budget --runs
""",
    "validate": """Examples:

    rackline validate cases.jsonl --plot parity.html
    rackline validate cases.jsonl --calibration unit --json
    rackline validate --import vllm result.json --chip h100-sxm \\
      --num-chips 4 --layout tp=4 --precision fp8 -o cases.jsonl
""",
    "calibrate": """Examples:

    rackline calibrate gemm.csv moe.csv collective.csv -o calibration.toml
    rackline plan llama-3.1-70b --on dgx-h100 \\
      --input 1k --output 500 --calibration ./calibration.toml
""",
    "lecture": """Examples:

    rackline lecture
    rackline lecture --segment 6
    rackline lecture --claim C99
    rackline lecture --claim Q4
    rackline lecture --claim C28 --set gb200:hbm_bytes_per_s=16TB/s
""",
    "chips": """Examples:

    rackline chips
    rackline chips --ridge
    rackline chips h100
    rackline chips h100 --set hbm_bytes_per_s=20TB/s --json
""",
    "clusters": """Examples:

    rackline clusters
    rackline clusters gb200-nvl72
""",
    "models": """Examples:

    rackline models
    rackline models deepseek-ai/DeepSeek-V3
    rackline models path/to/config.json --json
    rackline models --kv --on h200
""",
    "memory": """Examples:

    rackline memory
    rackline memory nvme-gen5
""",
    "compare": """Examples:

    rackline compare h100 b200 mi355x tpu-v7
    rackline compare dgx-h100 gb200-nvl72
    rackline compare deepseek-v3 deepseek-v3.2 kimi-k3
    rackline compare llama-3.1-70b@dgx-h100 llama-3.1-70b@dgx-b200 --input 4k --output 1k
""",
}

_MODULES = {
    "plan": "rackline.cli.plan:plan",
    "train": "rackline.cli.train:train",
    "simulate": "rackline.cli.commands:simulate",
    "explain": "rackline.cli.commands:explain",
    "fit": "rackline.cli.commands:fit",
    "tiers": "rackline.cli.commands:tiers",
    "price": "rackline.cli.commands:price",
    "infer-prices": "rackline.cli.commands:infer_prices",
    "budget": "rackline.cli.commands:budget",
    "validate": "rackline.cli.commands:validate",
    "calibrate": "rackline.cli.commands:calibrate",
    "lecture": "rackline.cli.commands:lecture",
    "chips": "rackline.cli.commands:chips",
    "clusters": "rackline.cli.commands:clusters",
    "models": "rackline.cli.commands:models",
    "memory": "rackline.cli.commands:memory",
    "compare": "rackline.cli.commands:compare",
}


_LONGEST_LINE = 2000  # characters of an error


def build_app() -> App:
    """The commands and their help; their modules are imported when they are called."""
    app = App(
        name="rackline",
        help="Seconds, bytes, chips and dollars of training and serving large language models, from first principles.",
        help_epilogue=_EXAMPLES[""],
        help_format="plaintext",
        version=_version,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for name, module in _MODULES.items():
        app.command(module, name=name, help=_COMMANDS[name], help_epilogue=_EXAMPLES[name])
    return app


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
        app = build_app()
        app(given, exit_on_error=False, print_error=False, verbose=False, console=screen())
        sys.stdout.flush()
    except RacklineError as error:
        return _refuse(str(error))
    except FailedCheckError:
        sys.stdout.flush()
        return 1
    except CycloptsError as error:
        return _refuse(_words(error, given))
    except BrokenPipeError:
        _drop_output()
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        place = error.filename or "standard output"
        _drop_output()  # what is left in its buffer cannot be written at the end either
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
        near = nearest_names(word, _MODULES, 1)
        nearest = f"; nearest: {near[0]}" if near else ""
        return f"command: got {word!r}, allowed: {', '.join(_MODULES)}{nearest}"
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
    """Write UTF-8 whatever the locale; a terminal that cannot show it gets a ? rather than a failure."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = stream.encoding if stream.isatty() else "utf-8"
            stream.reconfigure(encoding=encoding, errors="replace")


def _drop_output() -> None:
    """Whoever read our output has closed it: keep the interpreter from writing the rest at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version() -> str:
    from importlib.metadata import version

    return version("rackline")


if __name__ == "__main__":
    sys.exit(run())

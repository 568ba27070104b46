"""Run the argument parser of vLLM, SGLang or a router of theirs from its unpacked wheel, with stand-ins for the rest.

    python bench/engine_parser.py ENGINE FOLDER < commands.json > answer.json

Reads a list of commands (lists of words) and prints {"flags": {flag: {"value", "choices"}}, "errors": [text or null]}.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import logging
import sys
import types
import warnings
from abc import ABCMeta
from pathlib import Path

BESIDE = {
    "sglang_router": "sglang_router_rs",
    "vllm_router": "vllm_router_rs",
    "vllm": "platforms v1 model_executor distributed multimodal plugins transformers_utils compilation attention lora "
    "forward_context ray renderers kernels usage _custom_ops device_allocator tokenizers inputs sampling_params "
    "outputs pooling_params tracing reasoning tool_parsers parser config.quantization",
    "sglang": "kernels srt.distributed srt.layers srt.configs srt.models srt.utils srt.managers srt.mem_cache srt.lora "
    "srt.model_executor srt.batch_overlap srt.disaggregation srt.hardware_backend srt.platforms srt.compilation",
}
ABSENT = {"torch_npu", "torch_xla", "torch_musa", "torch_mlu", "habana_frameworks", "mlx", "amdsmi", "libtpu", "ray"}


def _special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


class _Class(ABCMeta):
    """Class of stand-ins: its attributes are stand-ins as well."""

    def __getattr__(cls, name):
        if name == "__get_pydantic_core_schema__":
            from pydantic_core import core_schema

            return lambda *_: core_schema.any_schema()
        if _special(name):
            raise AttributeError(name)
        return type(name, (StandIn,), {}) if name[:1].isupper() else StandIn()

    def __iter__(cls):
        return iter(())

    def __getitem__(cls, _):
        return cls


class StandIn(metaclass=_Class):
    def __init__(self, *_, **__):
        pass

    def __init_subclass__(cls, **_):
        pass

    def __getattr__(self, name):
        if _special(name):
            raise AttributeError(name)
        return type(name, (StandIn,), {}) if name[:1].isupper() else StandIn()

    @classmethod
    def register(cls, *_, **__):
        return lambda what: what

    @classmethod
    def __class_getitem__(cls, _):
        return cls

    def __call__(self, *args, **named):
        return args[0] if len(args) == 1 and callable(args[0]) and not named else StandIn()

    def __iter__(self):
        return iter(())

    def __getitem__(self, _):
        return StandIn()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def _operators(of) -> None:
    """Arithmetic gives the other operand where that is a plain value, else a stand-in."""

    def combine(self, *other):
        return other[0] if other and isinstance(other[0], (str, int, float)) else StandIn()

    names = "add radd sub rsub mul rmul truediv rtruediv floordiv mod pow and rand or ror lshift rshift neg invert"
    for name in names.split():
        setattr(of, f"__{name}__", combine)
    of.__int__ = of.__index__ = of.__len__ = lambda _: 0
    of.__float__ = lambda _: 0.0
    of.__contains__ = lambda *_: False
    of.__lt__ = of.__le__ = of.__gt__ = of.__ge__ = lambda *_: True


_operators(StandIn)
_operators(_Class)
_Class.__or__ = _Class.__ror__ = lambda cls, _: cls


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if _special(name) or name in ("npu", "xpu", "musa", "mlu", "hpu"):
            raise AttributeError(name)
        value = type(name, (StandIn,), {}) if name[:1].isupper() else StandIn()
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for the engine's packages beside its arguments, and for what is not installed."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.beside = tuple(f"{engine}.{name}" for name in BESIDE[engine].split())

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if any(name == one or name.startswith(f"{one}.") for one in self.beside):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if isinstance(sys.modules.get(top), _Module) and name != top and top != self.engine:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        known = top == self.engine or top in ABSENT or top in sys.stdlib_module_names or top == "_winapi"
        if known or name != top or any(one is not self and one.find_spec(name, path) for one in sys.meta_path):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = _Module(spec.name)
        module.__path__ = []
        module.__version__ = "2.14.0"
        module.__file__ = "stand-in"
        return module

    def exec_module(self, module):
        pass


def parser_of(engine: str, folder: str) -> argparse.ArgumentParser:
    """The engine's own parser of a server's options."""
    sys.meta_path.insert(0, _Finder(engine))
    package = types.ModuleType(engine)
    package.__path__ = [str(Path(folder) / engine)]
    package.__version__ = "0"
    sys.modules[engine] = package
    if engine.endswith("_router"):
        parser = argparse.ArgumentParser()
        importlib.import_module(f"{engine}.router_args").RouterArgs.add_cli_args(parser)
        return parser
    if engine == "sglang":
        parser = argparse.ArgumentParser()
        importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
        return parser
    platform = StandIn()
    platform.device_type = platform.device_name = "cuda"
    importlib.import_module("vllm.platforms").current_platform = platform
    try:
        flexible = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    except ModuleNotFoundError:
        flexible = importlib.import_module("vllm.utils").FlexibleArgumentParser
    try:
        make = importlib.import_module("vllm.entrypoints.common.cli_args").make_arg_parser
    except ModuleNotFoundError:
        make = importlib.import_module("vllm.entrypoints.openai.cli_args").make_arg_parser
    return make(flexible())


def flags_of(parser: argparse.ArgumentParser) -> dict[str, dict[str, object]]:
    """Every flag: whether it takes a value, and its choices."""
    found: dict[str, dict[str, object]] = {}
    for action in parser._actions:
        choices = [str(one) for one in action.choices] if isinstance(action.choices, (list, tuple)) else []
        for flag in action.option_strings:
            found[flag] = {"value": action.nargs != 0, "choices": sorted(choices)}
    return found


def refusal(parser: argparse.ArgumentParser, words: list[str]) -> str | None:
    """What the parser says against a command; None where it takes it."""
    heard = io.StringIO()
    options = words[3:] if words[0] == "python" else words[1:] if words[0] == "vllm-router" else words[2:]
    if words[:2] == ["vllm", "serve"]:
        options = ["--model", words[2], *words[3:]]
    try:
        with contextlib.redirect_stderr(heard):
            parser.parse_args(options)
    except SystemExit:
        return heard.getvalue().strip().splitlines()[-1]
    return None


def main() -> None:
    """Read commands, print flags and refusals."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    engine, folder = sys.argv[1:]
    commands = json.load(sys.stdin)
    sys.argv = ["serve"]
    with contextlib.redirect_stdout(sys.stderr):
        parser = parser_of(engine, folder)
        answer = {"flags": flags_of(parser), "errors": [refusal(parser, words) for words in commands]}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()

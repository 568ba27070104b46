"""Low-rank adapters in launch commands: options of the engines' own parsers, ranks, modules and what is lacking."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers import assert_parses, flags_of, flags_of_engines
from rackline.arch import AppliedAdapter, Model, apply_adapter, model
from rackline.hardware import cluster
from rackline.hub import Adapter
from rackline.parallel import Layout, precision
from rackline.search.launch import Replica, launch_command
from rackline.search.launch_commands import LaunchCommand, adapter_words
from rackline.serving.workload import Mode, Workload

TABLES = flags_of_engines()
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def adapter(rank: int = 16, number: int = 1, resident: int = 1, targets: tuple[str, ...] = ALL) -> AppliedAdapter:
    found = model("llama-3.1-8b")
    assert isinstance(found, Model)
    shape = Adapter(name="people/some-lora", base="", rank=rank, alpha=rank, targets=targets)
    applied = apply_adapter(found, shape).adapter
    assert applied is not None
    return replace(applied, number=number, resident=resident)


def command(engine: str, version: str = "", given: AppliedAdapter | None = None) -> LaunchCommand:
    place = cluster("dgx-h100")
    return launch_command(
        engine,
        Replica(
            model_id="meta-llama/Llama-3.1-8B", layout=Layout(tp=2), precision=precision("bf16", model("llama-3.1-8b"),
            place.chip), mode=Mode(admission="chunked", max_batched_tokens=2048), sequences_per_rank=64,
            workload=Workload(input_len=2048, output_len=512), adapter=given or adapter(number=50, resident=8),
        ),
        version,
    )  # fmt: skip


@pytest.mark.parametrize(("engine", "version"), [(name, at) for name, tables in TABLES.items() for at in tables])
def test_options_are_those_of_the_engine(engine: str, version: str) -> None:
    for given in (adapter(), adapter(rank=24), adapter(number=9, resident=9), adapter(number=50, resident=8)):
        found = command(engine, version, given)
        assert_parses(found.words, TABLES[engine][version], f"{engine} {version}")
        assert not found.lacks


def test_vllm_keeps_the_others_in_the_host_and_rounds_the_rank() -> None:
    found = dict(flags_of(command("vllm", given=adapter(rank=24, number=50, resident=8)).words))
    assert found["--lora-modules"] == "some-lora=people/some-lora"
    assert (found["--max-loras"], found["--max-cpu-loras"], found["--max-lora-rank"]) == ("8", "50", "32")
    alone = dict(flags_of(command("vllm", given=adapter()).words))
    assert "--max-cpu-loras" not in alone
    assert any("50 adapters: the others as further" in note for note in command("vllm").notes)


def test_sglang_names_its_modules() -> None:
    words = command("sglang").words
    place = words.index("--lora-target-modules")
    assert set(words[place + 1 : place + 8]) == set(ALL)
    found = dict(flags_of(words))
    assert (found["--max-loras-per-batch"], found["--max-loaded-loras"]) == ("8", "50")


def test_tensorrt_llm_takes_a_file() -> None:
    found = command("trtllm", given=adapter(targets=("q_proj", "o_proj"), number=50, resident=8))
    assert "--extra_llm_api_options" in found.words
    lines = found.options_file
    assert "lora_config:" in lines
    assert "  lora_target_modules: [attn_q, attn_dense]" in lines
    assert ("  max_loras: 8" in lines, "  max_cpu_loras: 50" in lines) == (True, True)
    assert sum(word == "--extra_llm_api_options" for word in found.words) == 1


def test_what_an_engine_cannot_take_is_said() -> None:
    assert adapter_words("vllm", adapter(rank=1024)).lacks == ("adapters of rank 1024: 512 is the most",)
    odd = replace(adapter(), modules=tuple(replace(one, name="layer.router") for one in adapter().modules[:1]))
    assert adapter_words("trtllm", odd).lacks == ("adapters on router have no name in its options",)


@pytest.mark.parametrize(
    ("where", "path"),
    [("/d/one/adapter_config.json", "/d/one"), ("people/some-lora@v2", "people/some-lora"), ("", "people/some-lora")],
)  # fmt: skip
def test_the_path_is_what_an_engine_loads(where: str, path: str) -> None:
    words = adapter_words("vllm", replace(adapter(), where=where)).words
    assert f"some-lora={path}" in words

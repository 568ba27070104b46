"""Launch commands: the flags are those of the engines' own parsers, the checkpoint is the one that was asked for."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import assert_parses, flags_of, flags_of_engines
from rackline.api.answer import Watch
from rackline.api.model_options import checkpoints_of as found_checkpoints
from rackline.api.resolve import Lookup, named_engine
from rackline.arch import Model, model
from rackline.catalog import names
from rackline.errors import InputError
from rackline.hardware import cluster
from rackline.parallel import Layout, enumerate_layouts, precision
from rackline.search.launch import Replica, launch_command
from rackline.search.launch_commands import LaunchCommand
from rackline.search.launch_plan import Checkpoints, Loaded, checkpoint
from rackline.search.launch_rules import Asked, Role, launch_rules
from rackline.search.space import default_modes
from rackline.serving.stack import stack
from rackline.serving.workload import Mode, Workload
from rackline.system import default_precisions

TABLES = flags_of_engines()


def checkpoints_of(name: str) -> Checkpoints:
    return found_checkpoints(name, Lookup(watch=Watch(), offline=True))


CHAT = Workload(input_len=2048, output_len=512)


@pytest.mark.parametrize(("engine", "version"), [(name, at) for name, tables in TABLES.items() for at in tables])
def test_every_flag_of_random_commands_is_one_of_the_engine(engine: str, version: str) -> None:
    flags = TABLES[engine][version]
    draw, rules, checked = np.random.default_rng(7), launch_rules(engine, version), 0
    known = [name for name in names("models") if isinstance(model(name), Model)]
    while checked < 150:
        of, on = model(str(draw.choice(known))), cluster(str(draw.choice(["h100-96", "gb200-nvl72", "mi300x-8"])))
        options = enumerate_layouts(of, on.num_chips)
        layout = options[int(draw.integers(len(options)))]
        chosen = default_precisions(of, on.chip)
        label = chosen[int(draw.integers(len(chosen)))]
        modes = default_modes(of, stack(engine, version=version))
        mode, role = modes[int(draw.integers(len(modes)))], str(draw.choice(["both", "prefill", "decode"]))
        what = Asked(model=of, cluster=on, sharding=layout, precision=label, mode=mode, role=role)  # type: ignore[arg-type]
        if rules.refusal(what):
            continue
        ids = checkpoints_of(of.name)
        loaded = checkpoint(ids, label, precision("native", of, on.chip))
        moe = of.moe() if isinstance(of, Model) else None
        command = launch_command(
            engine,
            Replica(
                model_id=loaded.model_id, quantise_to=loaded.quantise_to, layout=layout, precision=label,
                mode=mode, role=role,  # type: ignore[arg-type]
                sequences_per_rank=int(draw.integers(1, 300)), workload=CHAT, chips_per_host=on.host_chips,
                num_experts=moe.num_experts if moe else 0,
            ),
            version,
        )  # fmt: skip
        assert_parses(command.words, flags, f"{engine} {version}")
        checked += 1


def command(engine: str, layout: Layout, role: Role = "both", version: str = "", **more: object) -> LaunchCommand:
    place = cluster("gb200-nvl72")
    given = {
        "model_id": "x/y", "layout": layout, "precision": precision("fp8,kv=fp8", model("deepseek-v3"), place.chip),
        "mode": Mode(admission="chunked", max_batched_tokens=2048), "sequences_per_rank": 64, "workload": CHAT,
        "role": role, "chips_per_host": 4, "num_experts": 256,
    } | more  # fmt: skip
    return launch_command(engine, Replica(**given), version)  # type: ignore[arg-type]


def test_redundant_experts_make_the_ranks_equal() -> None:
    wide = Layout(attention_dp=72, ep=72)
    vllm, sglang, trtllm = (command(engine, wide) for engine in ("vllm", "sglang", "trtllm"))
    assert dict(flags_of(vllm.words))["--eplb-config"] == '{"num_redundant_experts": 32}'
    assert dict(flags_of(sglang.words))["--ep-num-redundant-experts"] == "32"
    assert "    num_slots: 288" in trtllm.options_file
    even = command("sglang", Layout(attention_dp=64, ep=64))
    assert "--ep-num-redundant-experts" not in even.words


def test_hosts_of_a_wide_replica() -> None:
    found = command("vllm", Layout(attention_dp=72, ep=72, dp=2))
    assert (found.num_hosts, found.chips_per_replica, found.replicas) == (18, 72, 2)
    assert dict(flags_of(found.words))["--data-parallel-size-local"] == "4"
    assert found.other_words[-3:] == ("--headless", "--data-parallel-start-rank", "$((RANK * 4))")
    piped = command("vllm", Layout(tp=4, pp=2), num_experts=0)
    assert dict(flags_of(piped.words))["--nnodes"] == "2"
    assert dict(flags_of(command("sglang", Layout(tp=8)).words))["--nnodes"] == "2"


def test_pools_name_their_connectors_and_kv_type() -> None:
    first, then = (command("sglang", Layout(tp=4), role) for role in ("prefill", "decode"))
    for one, role in ((first, "prefill"), (then, "decode")):
        flags = dict(flags_of(one.words))
        assert flags["--disaggregation-mode"] == role
        assert flags["--disaggregation-transfer-backend"] == "nixl"
        assert flags["--kv-cache-dtype"] == "fp8_e4m3"
    assert "NixlConnector" in str(dict(flags_of(command("vllm", Layout(tp=4), "decode").words))["--kv-transfer-config"])


def test_attention_dp_is_spelled_by_version() -> None:
    ranks = Layout(attention_dp=4, ep=4)
    assert "--enable-dp-attention" in command("sglang", ranks, version="0.5.6").words
    assert "--attn-dp-size" in command("sglang", ranks, version="0.5.23").words


NAMED = [
    ("llama-3.1-70b", "meta-llama/Llama-3.1-70B-Instruct"),
    ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"),
    ("deepseek-r1", "deepseek-ai/DeepSeek-R1"),
    ("deepseek-v3", "deepseek-ai/DeepSeek-V3"),
    ("deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-R1-0528"),
    ("gemma-3-27b", "google/gemma-3-27b-it"),
    ("gpt-oss-120b", "openai/gpt-oss-120b"),
]


@pytest.mark.parametrize(("given", "loaded"), NAMED)
def test_the_checkpoint_is_the_one_that_was_named(given: str, loaded: str) -> None:
    assert checkpoints_of(given).released == loaded


def test_the_checkpoint_fits_the_data_type() -> None:
    chip = cluster("dgx-b200").chip

    def chosen(name: str, label: str) -> Loaded:
        of = model(name)
        return checkpoint(checkpoints_of(name), precision(label, of, chip), precision("native", of, chip))

    assert chosen("deepseek-v3", "fp8") == Loaded(model_id="deepseek-ai/DeepSeek-V3")  # released in blocks of fp8
    assert chosen("qwen3-32b", "fp8") == Loaded(model_id="Qwen/Qwen3-32B-FP8")
    assert chosen("qwen3-235b-a22b", "fp4") == Loaded(model_id="nvidia/Qwen3-235B-A22B-NVFP4")
    converted = chosen("llama-3.3-70b", "fp8")  # of 3.1 there is one
    assert (converted.model_id, converted.quantise_to) == ("meta-llama/Llama-3.3-70B-Instruct", "fp8")
    assert chosen("deepseek-r1", "fp4").model_id == "deepseek-ai/DeepSeek-R1"
    assert chosen("deepseek-r1", "fp4").lack
    small = chosen("llama-3.1-8b", "fp8")
    assert (small.model_id, small.quantise_to) == ("meta-llama/Llama-3.1-8B-Instruct", "fp8")
    assert "while loading" in small.note
    assert "none is known" in chosen("llama-3.1-8b", "int4").lack
    assert chosen("gpt-oss-120b", "native") == Loaded(model_id="openai/gpt-oss-120b")


def test_engine_and_version() -> None:
    assert named_engine("auto") == ""
    assert named_engine("sglang=0.5.6") == "sglang=0.5.6"
    with pytest.raises(InputError, match="vllm"):
        named_engine("vlm")

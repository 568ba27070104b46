"""The launch script: bash runs it, and every program that it starts is told what its own argument parser takes."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

import rackline as rl
from helpers import assert_parses, flag_tables, flags_of
from rackline.arch import AppliedAdapter, Model, apply_adapter, model
from rackline.errors import InputError
from rackline.hardware import Cluster, cluster
from rackline.hub import Adapter
from rackline.parallel import Layout, precision
from rackline.report.exports import commands_text
from rackline.search.extensions import SpeculationRow, paying_drafts
from rackline.search.kubernetes import kubernetes_manifests
from rackline.search.launch import Drafts, check_stack
from rackline.search.launch_commands import PORT, LaunchCommand, Start, deployment_commands, starts_of
from rackline.search.launch_plan import Checkpoints, LaunchOptions, ReplicaKind, commands_of, longest_request
from rackline.search.launch_rules import Role
from rackline.search.starting import launch_options
from rackline.serving.workload import Mixture, Mode, Workload

TABLES = flag_tables()
ENGINES = [("vllm", "0.33.0"), ("vllm", "0.12.0"), ("sglang", "0.5.23"), ("sglang", "0.5.6"), ("trtllm", "")]
CHAT = Workload(input_len=1155, output_len=211)
ODD_PATH = '/data/it\'s a $HOME "model"'  # every character that a shell reads


@dataclass(frozen=True)
class Process:
    """A program that a script started."""

    words: tuple[str, ...]
    env: dict[str, str]
    files: dict[str, str]


# stands for every program: notes its arguments, its environment and the files beside it
_STAND_IN = """#!/bin/sh
note=$(mktemp "$NOTES/XXXXXX")
{ printf '%s\\0' "${0##*/}" "$@"; } > "$note"
env -0 > "$note.env"
"""
_PROGRAMS = ("vllm", "python", "trtllm-serve", "vllm-router", "nginx", "mpirun")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name in _PROGRAMS:
        (folder / name).write_text(_STAND_IN)
        (folder / name).chmod(0o755)
    (folder / "hostname").write_text("#!/bin/sh\necho 10.0.0.9 fe80::1\n")
    (folder / "hostname").chmod(0o755)
    return folder


def run(script: str, programs: Path, folder: Path, node: int = 0, hosts: int = 1) -> list[Process]:
    """What a script starts on one host, after `bash -n` has read it."""
    folder.mkdir(exist_ok=True)
    notes = folder / "notes"
    notes.mkdir()
    file = folder / "launch.sh"
    file.write_text(script)
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "NOTES": str(notes), "NODE": str(node)}
    env["HOSTS"] = " ".join(f"10.0.0.{number + 1}" for number in range(hosts))
    for words in (["bash", "-n", str(file)], ["bash", str(file)]):
        done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=1200)
        assert (done.returncode, done.stderr) == (0, ""), script
    files = {path.name: path.read_text() for path in folder.iterdir() if path.suffix in (".yaml", ".conf")}
    found: list[Process] = []
    for path in sorted(notes.glob("*.env")):
        lines = [line.partition("=") for line in path.read_text().split("\0") if line]
        words = path.with_suffix("").read_text().split("\0")[:-1]
        found.append(Process(tuple(words), {name: value for name, _, value in lines}, files))
    return found


def tables_of(words: tuple[str, ...], version: str) -> dict[str, object]:
    """The flags of the program that words start."""
    match words:
        case ("vllm", *_):
            return TABLES["vllm"][version]
        case ("python", "-m", "sglang.launch_server", *_):
            return TABLES["sglang"][version]
        case ("python", "-m", "sglang_router.launch_router", *_):
            return TABLES["sglang_router"]["0.3.2"]
        case ("vllm-router", *_):
            return TABLES["vllm_router"]["0.1.17"]
        case ("trtllm-serve", *_):
            return TABLES["trtllm-serve"]["00209af1"]
        case _:
            pytest.fail(f"an unknown program: {words}")


def adapters() -> AppliedAdapter:
    of = model("llama-3.1-8b")
    assert isinstance(of, Model)
    shape = Adapter(name="people/some-lora", base="", rank=16, alpha=16, targets=("q_proj", "o_proj"))
    found = apply_adapter(of, shape).adapter
    assert found is not None
    return replace(found, number=50, resident=8)


def kinds(place: str, parts: dict[Role, Layout], name: str = "llama-3.1-8b") -> list[ReplicaKind]:
    on = cluster(place)
    return [
        ReplicaKind(
            role=role, layout=layout, precision=precision("native", model(name), on.chip),
            mode=Mode(admission="chunked", max_batched_tokens=2048), max_num_seqs=64, on=on,
        )
        for role, layout in parts.items()
    ]  # fmt: skip


DEPLOYMENTS: dict[str, tuple[str, str, dict[Role, Layout]]] = {
    "one": ("llama-3.1-8b", "dgx-h100", {"both": Layout(tp=2)}),
    "four on a host": ("llama-3.1-8b", "dgx-h100", {"both": Layout(tp=2, dp=4)}),
    "amd": ("llama-3.1-8b", "mi300x-8", {"both": Layout(tp=1, dp=8)}),
    "two hosts": ("deepseek-v3", "h100-96", {"both": Layout(tp=8, pp=2, dp=2)}),
    "ranks": ("deepseek-v3", "h100-96", {"both": Layout(attention_dp=16, ep=16, dp=2)}),
    "pools on a host": ("llama-3.1-8b", "dgx-h100", {"prefill": Layout(tp=1, dp=3), "decode": Layout(tp=4)}),
    "pools on hosts": ("deepseek-v3", "h100-96", {"prefill": Layout(tp=8, pp=2), "decode": Layout(tp=8, dp=2)}),
}
EXTRAS = {"plain": {}, "adapters": {}, "drafts": {"drafts": Drafts(tokens=3)}, "offload": {"host_cache_bytes": 64e9}}


def deployment(stack: str, version: str, which: str, extra: str, model_id: str = ODD_PATH) -> list[LaunchCommand]:
    name, place, parts = DEPLOYMENTS[which]
    of = model(name)
    if extra == "adapters":
        assert isinstance(of, Model)
        of = replace(of, adapter=adapters())
    options = LaunchOptions(stack=stack, version=version, **EXTRAS[extra])  # type: ignore[arg-type]
    commands = commands_of(kinds(place, parts, name), of, CHAT, Checkpoints(released=model_id), options)
    return deployment_commands(commands)


def started(commands: list[LaunchCommand], programs: Path, folder: Path) -> Iterator[tuple[int, Process]]:
    """(host, process) of everything that a deployment starts."""
    hosts = 1 + max(start.host + start.num_hosts - 1 for one in commands for start in one.starts)
    script = commands_text(commands)
    for node in range(hosts):
        for process in run(script, programs, folder / str(node), node, hosts):
            yield node, process


CASES = [
    (stack, version, which, extra)
    for stack, version in ENGINES
    for which in DEPLOYMENTS
    for extra in (EXTRAS if which in ("one", "pools on a host") else ("plain",))
    if not (stack == "trtllm" and which == "amd")
]


@pytest.mark.parametrize(("stack", "version", "which", "extra"), CASES)
def test_bash_starts_every_replica_with_arguments_that_its_parser_takes(
    stack: str, version: str, which: str, extra: str, programs: Path, tmp_path: Path
) -> None:
    commands = deployment(stack, version, which, extra)
    replicas = [one for one in commands if one.role != "router"]
    at: dict[int, list[tuple[str, str]]] = {}
    heads = 0
    for node, process in started(commands, programs, tmp_path):
        words = process.words
        if words[0] == "mpirun":
            first = words.index("trtllm-serve")
            slots = words[words.index("--host") + 1].split(",")
            assert sum(int(slot.partition(":")[2]) for slot in slots) == replicas[0].chips_per_replica
            words = words[first:]
        if words[0] == "nginx":
            assert process.files["router.conf"].count("    server ") == sum(one.replicas for one in replicas)
            continue
        if words[:2] == ("trtllm-serve", "disaggregated"):
            flags = TABLES["trtllm-serve-disaggregated"]["00209af1"]
            assert set(words[2::2]) <= set(flags)
            config = yaml.safe_load(process.files[words[words.index("-c") + 1]])
            for key, one in zip(("context_servers", "generation_servers"), replicas, strict=True):
                assert config[key]["num_instances"] == len(config[key]["urls"]) == one.replicas
            continue
        assert_parses(words, tables_of(words, version), f"{stack} {version}")
        if "router" in words[0] or "router" in words[2]:
            urls = [word for word in words if word.startswith("http://")]
            assert len(set(urls)) == sum(one.replicas for one in replicas)
            continue
        # the model's path reaches the engine as it is
        assert ODD_PATH in words
        given = dict(flags_of(words))
        if "--port" in given and given.get("--node-rank", "0") == "0":
            heads += 1
            chips = process.env.get("CUDA_VISIBLE_DEVICES") or process.env.get("HIP_VISIBLE_DEVICES") or "all"
            at.setdefault(node, []).append((str(given["--port"]), chips))
        if "--extra_llm_api_options" in given:
            assert yaml.safe_load(process.files[str(given["--extra_llm_api_options"])])
    assert heads == sum(one.replicas for one in replicas)
    for servers in at.values():
        ports, chips = zip(*servers, strict=True)
        assert len(set(ports)) == len(ports)
        taken = [chip for some in chips for chip in some.split(",")]
        assert len(set(taken)) == len(taken)
        assert len(servers) == 1 or "all" not in taken


def test_pools_of_sglang_have_one_transfer_library(programs: Path, tmp_path: Path) -> None:
    """A prefill pool with pipeline stages needs Mooncake: the decode pool has it as well."""
    commands = deployment("sglang", "", "pools on hosts", "plain")
    used = [
        dict(flags_of(process.words)).get("--disaggregation-transfer-backend")
        for _, process in started(commands, programs, tmp_path)
    ]
    assert set(used) - {None} == {"mooncake"}
    flat = [one.words for one in deployment("sglang", "", "pools on a host", "plain")]
    assert all("nixl" in words for words in flat[:2])


def test_lines_are_whole_on_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """The connector of a pool is a line of more than 80 letters, whose backslash was cut off."""
    text = commands_text(deployment("vllm", "", "pools on a host", "adapters"))
    line = next(line for line in text.splitlines() if "--kv-transfer-config" in line)
    assert line.endswith(" \\")
    assert len(line) > 80


def test_drafts_and_offload_reach_the_engines() -> None:
    words = {stack: deployment(stack, "", "one", "drafts")[0] for stack in ("vllm", "sglang", "trtllm")}
    assert '{"method": "mtp", "num_speculative_tokens": 3}' in words["vllm"].words
    flags = dict(flags_of(words["sglang"].words))
    assert (flags["--speculative-num-steps"], flags["--speculative-num-draft-tokens"]) == ("3", "4")
    assert (
        yaml.safe_load("\n".join(words["trtllm"].options_file))["speculative_config"]["num_nextn_predict_layers"] == 3
    )
    kept = {stack: deployment(stack, "", "one", "offload")[0] for stack in ("vllm", "sglang", "trtllm")}
    # two chips: in GiB over both, in GB and in bytes of each
    assert dict(flags_of(kept["vllm"].words))["--kv-offloading-size"] == f"{2 * 64e9 / 2**30:.4g}"
    assert dict(flags_of(kept["sglang"].words))["--hicache-size"] == "64"
    cache = yaml.safe_load("\n".join(kept["trtllm"].options_file))["kv_cache_config"]
    assert cache == {"host_cache_size": 64_000_000_000, "free_gpu_memory_fraction": 0.9}


def test_drafts_of_another_model_name_it() -> None:
    head = Drafts(tokens=2, model_id="people/EAGLE3-x", is_head=True)
    given = LaunchOptions(stack="sglang", drafts=head)
    place = kinds("dgx-h100", {"both": Layout(tp=2)})
    sglang = dict(flags_of(commands_of(place, model("llama-3.1-8b"), CHAT, Checkpoints(released="x"), given)[0].words))
    assert (sglang["--speculative-algorithm"], sglang["--speculative-draft-model-path"]) == (
        "EAGLE3",
        "people/EAGLE3-x",
    )
    small = replace(given, stack="vllm", drafts=replace(head, is_head=False))
    words = commands_of(place, model("llama-3.1-8b"), CHAT, Checkpoints(released="x"), small)[0].words
    assert '"method": "draft_model", "model": "people/EAGLE3-x"' in words[words.index("--speculative-config") + 1]


def test_sglang_drops_drafts_with_stages_and_says_so() -> None:
    commands = deployment("sglang", "", "two hosts", "drafts")
    assert not any(word.startswith("--speculative") for word in commands[0].words)
    assert any("drafts would pay" in note for note in commands[0].notes)


def test_typical_lengths_leave_room_for_longer_requests() -> None:
    place = kinds("dgx-h100", {"both": Layout(tp=2)})
    of = model("llama-3.1-8b")
    assert longest_request(place, of, CHAT)[0] == 13 * 1366
    assert "public traces" in longest_request(place, of, CHAT)[1]
    assert longest_request(place, of, replace(CHAT, equal_lengths=True))[0] == 1366
    known = Workload.of_mixture(Mixture.of([1.0, 1.0], [1000.0, 8000.0], [100.0, 500.0]))  # type: ignore[arg-type]
    assert longest_request(place, of, known) == (8500, "the longest of the workload")
    long = Workload(input_len=100_000, output_len=1000)
    assert longest_request(place, of, long) == (131072, "what the model takes")


def test_a_stack_without_launch_rules_is_refused() -> None:
    for name in ("unit", "generic", "atom"):
        with pytest.raises(InputError, match="vllm, sglang, trtllm"):
            check_stack(name)
    with pytest.raises(InputError, match="launch"):
        deployment("atom", "", "one", "plain")


def test_chips_of_a_vendor_without_a_variable_are_said() -> None:
    shared = kinds("gaudi3-8", {"both": Layout(tp=2, dp=2)})
    (command,) = commands_of(
        shared, model("llama-3.1-8b"), CHAT, Checkpoints(released="x"), LaunchOptions(stack="vllm")
    )
    assert any("which chips" in lack for lack in command.lacks)


def wanted(replicas: int, chips: int, num_hosts: int = 1) -> LaunchCommand:
    command = LaunchCommand(stack="vllm", role="both", words=())
    return replace(command, replicas=replicas, chips_per_replica=chips, num_hosts=num_hosts)


def test_replicas_share_hosts_and_nothing_else() -> None:
    prefill, decode = starts_of([wanted(3, 2), wanted(1, 4)], [cluster("h100-96")] * 2)
    assert decode == (Start(host=0, chips=(0, 1, 2, 3), port=PORT),)
    assert [(one.host, one.chips) for one in prefill] == [(0, (4, 5)), (0, (6, 7)), (1, (0, 1))]
    assert [one.port for one in prefill] == [8100, 8200, 8000]
    wide, narrow = starts_of([wanted(2, 16, 2), wanted(1, 8)], [cluster("h100-96")] * 2)
    assert [(one.host, one.num_hosts, one.chips) for one in wide] == [(0, 2, ()), (2, 2, ())]
    assert narrow[0].host == 4


def test_manifests_have_the_same_words() -> None:
    """What a pod runs is what the script starts, its address aside."""
    on: Cluster = cluster("dgx-h100")
    for stack in ("vllm", "sglang", "trtllm"):
        *replicas, _ = deployment(stack, "", "pools on a host", "drafts", "x/y")
        documents = kubernetes_manifests(replicas, [on] * len(replicas), "x")
        pods = [one["spec"]["template"]["spec"]["containers"][0] for one in documents if one["kind"] == "Deployment"]
        for command, pod in zip(replicas, pods, strict=True):
            words = [word.removeprefix("/etc/engine/") for word in pod["command"]]
            side = str(Start(host=0).side_port)
            assert words == [*command.words, *command.server_words(str(PORT), side)]
            env = {one["name"]: one.get("value") for one in pod["env"]}
            assert {name for name, _ in command.server_env(side, "")} <= set(env)


def test_words_are_quoted_for_a_shell() -> None:
    (command,) = deployment("vllm", "", "one", "plain")
    text = commands_text([command])
    start = text.index("CUDA_VISIBLE_DEVICES")
    assert ODD_PATH in shlex.split(text[start:].replace("\\\n", " "))


def planned(name: str, *, speculate: str, **more: Any) -> Any:
    """The answer of a small plan whose drafts were asked for."""
    return rl.plan(
        name, on="dgx-h100", chips=1, layout="tp=1", mode="chunked=2k", input="1k", output=200, tpot="30ms",
        speculate=speculate, engine="vllm", launch=True, **more,
    ).result  # fmt: skip


def test_a_plan_launches_the_drafts_that_pay() -> None:
    """Those with which it says that the engine is fastest, by the model's own layer; else it says what is missing."""
    found = planned("mimo-7b", speculate="usual")
    rows, most = found.speculation, found.plan.best.max_num_seqs
    times = {row.speculation.draft_tokens: np.interp(most, row.sequences_per_rank, row.tpot_s) for row in rows}
    count = min(times, key=times.__getitem__)
    assert count > 0
    assert f'"num_speculative_tokens": {count}' in commands_text(found.launch)
    assert paying_drafts(found.plan, rows[:1]) is None
    assert "name a head or a small model with --draft" in commands_text(planned("llama-3.1-8b", speculate="1").launch)
    named = commands_text(planned("llama-3.1-8b", speculate="1=2", draft="llama-3.2-3b").launch)
    assert '"method": "draft_model", "model": "meta-llama/Llama-3.2-3B' in named


def test_drafts_are_fewer_than_the_layers_that_draft_or_a_multiple_of_them() -> None:
    """With two layers of its own a model drafts 1, 2 or 4 tokens in a step, and no 3, however fast they were."""

    def row(count: int, tpot_s: float) -> SpeculationRow:
        drafts = SimpleNamespace(draft_tokens=count)
        return SpeculationRow(
            speculation=drafts,  # type: ignore[arg-type]
            sequences_per_rank=np.array([1.0, 8.0]),
            tpot_s=np.array([tpot_s, tpot_s]),
            breakeven=np.zeros(2),
            pays_up_to=8,
            best_batch=8,
            output_tokens_per_s_per_chip=1.0,
        )

    two = replace(model("mimo-7b"), mtp_layers=2)
    found: Any = SimpleNamespace(best=SimpleNamespace(max_num_seqs=4), system=SimpleNamespace(model=two))
    for fastest, expected in ((1, 1), (2, 2), (3, 0), (4, 4)):
        rows = [row(0, 0.02), *(row(count, 0.01 if count == fastest else 0.03) for count in (1, 2, 3, 4))]
        chosen = paying_drafts(found, rows)
        assert (chosen.speculation.draft_tokens if chosen else 0) == expected


def test_a_tier_of_the_host_reaches_the_engine() -> None:
    tiers = [
        SimpleNamespace(name=name, capacity_bytes=size)
        for name, size in (("HBM", 9e9), ("host", 64e9), ("flash", 1e12))
    ]
    asked = SimpleNamespace(engine="sglang", version="", draft_id="", prefill_cluster=None)
    found: Any = SimpleNamespace(system=SimpleNamespace(model=model("llama-3.1-8b")), best=None)
    options = launch_options(asked, found, None, SimpleNamespace(tiers=tiers))  # type: ignore[arg-type]
    assert options.host_cache_bytes == 64e9
    assert options.notes == ("prefixes in flash: its options were not read",)

"""Compose files of a plan: valid by the published schema, all chips given once, the commands of `launch`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rackline.arch import model
from rackline.cli.main import run
from rackline.errors import InputError
from rackline.hardware import Cluster, cluster
from rackline.parallel import Layout, precision
from rackline.report.exports import manifest_text
from rackline.search.containers import compose_file
from rackline.search.launch import Replica, launch_command
from rackline.search.launch_commands import LaunchCommand, placed
from rackline.search.launch_rules import Role
from rackline.serving.workload import Mode, Workload

SCHEMA: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "data" / "manifest_schemas" / "compose-spec.json").read_text(encoding="utf-8")
)


def commands(
    engine: str, on: Cluster, *kinds: tuple[Layout, Role], model_id: str = "x/y", version: str = ""
) -> list[LaunchCommand]:
    """The placed commands of a deployment of llama-3.1-70b, a kind of replica each."""
    found = [
        launch_command(
            engine,
            Replica(
                model_id=model_id, layout=layout, precision=precision("fp8,kv=fp8", model("llama-3.1-70b"), on.chip),
                mode=Mode(admission="chunked", max_batched_tokens=2048), sequences_per_rank=64,
                workload=Workload(input_len=2048, output_len=512), role=role, chips_per_host=on.host_chips,
                vendor=on.chip.vendor,
            ),
            version,
        )
        for layout, role in kinds
    ]  # fmt: skip
    return placed(found, [on] * len(found))


def composed(found: list[LaunchCommand], on: Cluster) -> dict[str, Any]:
    """The file after it was written and read; valid."""
    made = compose_file(found, [on] * len(found), "x on y")
    (read,) = yaml.safe_load_all(manifest_text([made], ["about"]))
    assert read == made
    jsonschema.validate(read, SCHEMA)
    return read


def chips_of(service: dict[str, Any]) -> list[str]:
    """Chips of the host that a container sees."""
    if "deploy" in service:
        (devices,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert devices["driver"] == "nvidia"
        return devices["device_ids"]
    chosen: str = service.get("environment", {}).get("HIP_VISIBLE_DEVICES", "")
    return chosen.split(",") if chosen else []


KINDS: list[tuple[str, str, list[tuple[Layout, Role]]]] = [
    ("vllm", "dgx-h100", [(Layout(tp=8), "both")]),
    ("vllm", "dgx-h100", [(Layout(tp=2, dp=4), "both")]),
    ("vllm", "dgx-h100", [(Layout(tp=2, dp=2), "prefill"), (Layout(tp=4), "decode")]),
    ("vllm", "mi300x-8", [(Layout(tp=4, dp=2), "both")]),
    ("sglang", "dgx-h200", [(Layout(tp=4, dp=2), "both")]),
    ("sglang", "dgx-h100", [(Layout(tp=2, dp=2), "prefill"), (Layout(tp=4), "decode")]),
    ("sglang", "dgx-h100", [(Layout(tp=2, dp=3), "both"), (Layout(tp=2), "both")]),
    ("trtllm", "dgx-b200", [(Layout(tp=2, dp=4), "both")]),
    ("trtllm", "dgx-h100", [(Layout(tp=2, dp=2), "prefill"), (Layout(tp=4), "decode")]),
]


@pytest.mark.parametrize(("engine", "place", "kinds"), KINDS)
def test_a_file_gives_every_chip_once_and_runs_the_commands(
    engine: str, place: str, kinds: list[tuple[Layout, Role]]
) -> None:
    on = cluster(place)
    started = commands(engine, on, *kinds)
    services = composed(started, on)["services"]
    replicas = {name: one for name, one in services.items() if name != "router"}
    given = [chip for one in replicas.values() for chip in chips_of(one)]
    assert sorted(given) == [str(chip) for chip in range(8)]
    assert len(replicas) == sum(layout.dp for layout, _ in kinds)
    words = [[*one["entrypoint"], *one["command"]] for one in replicas.values()]
    wanted = [
        [*one.words, *one.server_words(str(start.port), str(start.side_port))]
        for one in started
        for start in one.starts
    ]
    assert [[word.removeprefix("/etc/engine/") for word in one] for one in words] == wanted
    for one in replicas.values():
        port = one["command"][one["command"].index("--port") + 1]
        assert one["expose"] == [port]
        assert f"localhost:{port}/health" in one["healthcheck"]["test"][-1]


@pytest.mark.parametrize(("engine", "place", "kinds"), [one for one in KINDS if len(one[2]) > 1 or one[2][0][0].dp > 1])
def test_the_router_reaches_every_replica_by_its_name(
    engine: str, place: str, kinds: list[tuple[Layout, Role]]
) -> None:
    on = cluster(place)
    made = composed(commands(engine, on, *kinds), on)
    services = made["services"]
    router = services.pop("router")
    text = " ".join([*router["command"], made.get("configs", {}).get("router", {}).get("content", "")])
    for name, one in services.items():
        assert f"{name}:{one['expose'][0]}" in text
        assert "ports" not in one
    assert "localhost" not in text
    assert set(router["depends_on"]) == set(services)
    assert all(one == {"condition": "service_healthy"} for one in router["depends_on"].values())
    assert router["ports"] == ["127.0.0.1:30000:30000"]
    assert not chips_of(router)


def test_one_replica_is_reached_without_a_router() -> None:
    on = cluster("dgx-h100")
    made = composed(commands("vllm", on, (Layout(tp=8), "both")), on)
    assert list(made["services"]) == ["engine-0"]
    assert made["services"]["engine-0"]["ports"] == ["127.0.0.1:8000:8000"]
    assert made["services"]["engine-0"]["volumes"] == ["hub:/root/.cache/huggingface"]
    assert "configs" not in made


def test_files_that_an_engine_reads_are_in_the_file() -> None:
    on = cluster("dgx-b200")
    started = commands("trtllm", on, (Layout(tp=8), "both"))
    made = composed(started, on)
    (one,) = made["services"].values()
    (config,) = one["configs"]
    assert config["target"] in one["command"]
    assert made["configs"][config["source"]]["content"].splitlines() == list(started[0].options_file)


def test_models_on_the_host_are_mounted_and_dollars_are_kept() -> None:
    on = cluster("dgx-h100")
    made = composed(commands("vllm", on, (Layout(tp=8), "both"), model_id="/data/m$1"), on)
    one = made["services"]["engine-0"]
    assert "/data/m$$1" in one["command"]
    assert one["volumes"][1:] == ["/data/m$$1:/data/m$$1:ro"]


def test_what_one_host_cannot_run_is_refused() -> None:
    wide, tpu = cluster("h100-96"), cluster("tpu-v5e-16")
    with pytest.raises(InputError, match=r"compose on 2 hosts.*kubernetes"):
        compose_file(commands("vllm", wide, (Layout(tp=8, pp=2), "both")), [wide], "x")
    with pytest.raises(InputError, match="compose on 3 hosts"):
        compose_file(commands("vllm", wide, (Layout(tp=8, dp=3), "both")), [wide], "x")
    with pytest.raises(InputError, match="chips of NVIDIA and AMD"):
        compose_file(commands("vllm", tpu, (Layout(tp=8), "both")), [tpu], "x")
    with pytest.raises(InputError, match="a plan that has an answer"):
        compose_file([], [], "x")


@pytest.mark.parametrize(
    ("place", "value"),
    [("ports", 8000), ("recources", {}), ("healthcheck", {"test": 3}), ("command", {"a": 1})],
)
def test_a_broken_file_fails_the_schema(place: str, value: object) -> None:
    on = cluster("dgx-h100")
    made = composed(commands("vllm", on, (Layout(tp=8), "both")), on)
    made["services"]["engine-0"][place] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(made, SCHEMA)


def test_a_plan_writes_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "compose.yaml"
    words = ["plan", "llama-3.1-8b", "--on", "dgx-h100", "--input", "1k", "--output", "100", "--precision", "bf16"]
    words += ["--calibration", "vllm", "--launch-as", "compose", str(target), "--json"]
    assert run(words) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    made = yaml.safe_load(target.read_text(encoding="utf-8"))
    jsonschema.validate(made, SCHEMA)
    given = [chip for one in made["services"].values() for chip in chips_of(one)]
    assert len(given) == len(set(given)) == best["num_chips"]

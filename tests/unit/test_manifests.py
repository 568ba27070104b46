"""Manifests of a plan: valid by the published schemas, with the plan's chips and the commands of `launch`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rackline.arch import model
from rackline.catalog import names, orchestrator_record
from rackline.errors import InputError
from rackline.hardware import Cluster, cluster
from rackline.parallel import Layout, precision
from rackline.report.exports import manifest_text
from rackline.search.containers import kubernetes_name
from rackline.search.kubernetes import (
    dynamo_manifests,
    engine_version,
    kubernetes_manifests,
    llm_d_manifests,
    router_lines,
    routing_note,
    trtllm_config,
)
from rackline.search.launch import Replica, launch_command
from rackline.search.launch_commands import PORT, LaunchCommand
from rackline.search.launch_rules import Role
from rackline.serving.workload import Mode, Workload

SCHEMAS = Path(__file__).parent.parent / "data" / "manifest_schemas"
_CORE = json.loads((SCHEMAS / "kubernetes-1.37.json").read_text())
_CUSTOM = json.loads((SCHEMAS / "custom-resources.json").read_text())["kinds"]
SERVING = ["--host", "0.0.0.0", "--port", str(PORT)]


def schema_of(kind: str) -> dict[str, Any]:
    """The schema of a kind with all that it refers to."""
    own = _CUSTOM.get(kind)
    if own is None:
        (name,) = [known for known in _CORE["kinds"] if known.endswith(f".{kind}")]
        own = {"$ref": f"#/definitions/{name}"}
    return {**own, "definitions": _CORE["definitions"]}


def parsed(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Documents after they were written and read, each valid."""
    found = list(yaml.safe_load_all(manifest_text(documents, ["about", "this"])))
    assert found == documents
    for one in found:
        jsonschema.Draft202012Validator(schema_of(one["kind"])).validate(one)
    return found


def command(engine: str, layout: Layout, on: Cluster, role: Role = "both", version: str = "") -> LaunchCommand:
    return launch_command(
        engine,
        Replica(
            model_id="x/y", layout=layout, precision=precision("fp8,kv=fp8", model("deepseek-v3"), on.chip),
            mode=Mode(admission="chunked", max_batched_tokens=2048), sequences_per_rank=64,
            workload=Workload(input_len=2048, output_len=512), role=role, chips_per_host=on.host_chips,
            num_experts=256,
        ),
        version,
    )  # fmt: skip


def pods_of(document: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """(number, spec) of the pods of a Deployment, a LeaderWorkerSet or a graph."""
    spec = document.get("spec", {})
    match document["kind"]:
        case "Deployment":
            return [(spec["replicas"], spec["template"]["spec"])]
        case "LeaderWorkerSet":
            group = spec["leaderWorkerTemplate"]
            leaders, others = spec["replicas"], spec["replicas"] * (group["size"] - 1)
            return [(leaders, group["leaderTemplate"]["spec"]), (others, group["workerTemplate"]["spec"])]
        case "DynamoGraphDeployment":
            parts = [one for one in spec["components"] if one["type"] != "frontend"]
            return [
                (one["replicas"] * one.get("multinode", {"nodeCount": 1})["nodeCount"], one["podTemplate"]["spec"])
                for one in parts
            ]
        case _:
            return []


def chips_in(documents: list[dict[str, Any]]) -> int:
    """Chips that all pods ask for."""
    total = 0
    for document in documents:
        for count, pod in pods_of(document):
            (limits,) = [one["resources"]["limits"] for one in pod["containers"]]
            total += count * sum(int(number) for number in limits.values())
    return total


CASES = [
    ("vllm", "dgx-h100", Layout(tp=4, dp=2)),
    ("vllm", "h100-96", Layout(tp=8, pp=2, dp=3)),
    ("vllm", "h100-96", Layout(attention_dp=16, ep=16, dp=2)),
    ("vllm", "mi300x-8", Layout(tp=8)),
    ("sglang", "dgx-h200", Layout(attention_dp=8, ep=8)),
    ("sglang", "h100-96", Layout(tp=16, dp=2)),
    ("sglang", "gb200-nvl72", Layout(attention_dp=16, ep=16, dp=3)),
    ("trtllm", "dgx-b200", Layout(tp=2, dp=4)),
]


@pytest.mark.parametrize(("engine", "place", "layout"), CASES, ids=lambda value: str(getattr(value, "label", str)()))
def test_kubernetes_holds_the_chips_and_the_command(engine: str, place: str, layout: Layout) -> None:
    on = cluster(place)
    started = command(engine, layout, on)
    found = parsed(kubernetes_manifests([started], [on], f"x on {place}"))
    assert chips_in(found) == layout.num_chips
    workload = next(one for one in found if one["kind"] in ("Deployment", "LeaderWorkerSet"))
    assert (workload["kind"] == "LeaderWorkerSet") == (started.num_hosts > 1)
    first = pods_of(workload)[0][1]["containers"][0]
    plain = {"/etc/engine/": "", "$(LWS_LEADER_ADDRESS)": "$HOST", "$(LWS_WORKER_INDEX)": "$RANK"}
    written = first["command"]
    for found_there, said in plain.items():
        written = [word.replace(found_there, said) for word in written]
    assert written == [*started.words, *SERVING]
    (service,) = [one for one in found if one["kind"] == "Service"]
    labels = workload["spec"].get("template") or workload["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    assert service["spec"]["selector"].items() <= labels["metadata"]["labels"].items()
    assert first["startupProbe"]["httpGet"]["path"] == "/health"
    assert first["ports"][0]["containerPort"] == PORT


def test_other_hosts_of_a_group_are_told_their_ranks() -> None:
    on = cluster("h100-96")
    (group, *_) = kubernetes_manifests([command("vllm", Layout(attention_dp=16, ep=16), on)], [on], "x")
    worker = pods_of(group)[1][1]["containers"][0]
    assert worker["command"][:2] == ["/bin/sh", "-c"]
    assert "LWS_WORKER_INDEX * 8" in worker["command"][2]
    assert "--headless" in worker["args"]
    assert not any(key.endswith("Probe") for key in worker)
    (staged, *_) = kubernetes_manifests([command("vllm", Layout(tp=8, pp=2), on)], [on], "x")
    words = pods_of(staged)[1][1]["containers"][0]["command"]
    assert words[words.index("--node-rank") + 1] == "$(LWS_WORKER_INDEX)"
    assert words[-1] == "--headless"


def test_trays_of_a_rack_share_its_links() -> None:
    on = cluster("gb200-nvl72")
    found = kubernetes_manifests([command("sglang", Layout(attention_dp=16, ep=16, dp=3), on)], [on], "x")
    (domain,) = [one for one in found if one["kind"] == "ComputeDomain"]
    assert domain["spec"]["numNodes"] == 12
    for _, pod in pods_of(next(one for one in found if one["kind"] == "LeaderWorkerSet")):
        assert pod["resourceClaims"][0]["resourceClaimTemplateName"] == "x-channel"
    on = on.with_num_chips(144)
    with pytest.raises(InputError, match="one NVLink domain of 72"):
        kubernetes_manifests([command("sglang", Layout(attention_dp=16, ep=16, dp=9), on)], [on], "x")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_pools_are_two_workloads_with_their_connector(engine: str) -> None:
    on = cluster("dgx-h100")
    both = [command(engine, Layout(tp=2, dp=2), on, "prefill"), command(engine, Layout(tp=4), on, "decode")]
    found = parsed(kubernetes_manifests(both, [on, on], "x"))
    assert chips_in(found) == 8
    assert [one["metadata"]["name"] for one in found if one["kind"] == "Deployment"] == ["x-prefill", "x-decode"]
    marks = {"vllm": "NixlConnector", "sglang": "--disaggregation-mode", "trtllm": "cache_transceiver_config"}
    assert manifest_text(found, []).count(marks[engine]) == 2
    assert "router" in routing_note(both)
    assert not routing_note(both[:1])


GRAPHS = [
    ("vllm", "dgx-h100", Layout(tp=4, dp=2)),
    ("vllm", "h100-96", Layout(attention_dp=16, ep=16, dp=2)),
    ("sglang", "h100-96", Layout(tp=16, dp=2)),
    ("trtllm", "gb200-nvl72", Layout(attention_dp=16, ep=16, dp=2)),
]


@pytest.mark.parametrize(("engine", "place", "layout"), GRAPHS, ids=lambda value: str(getattr(value, "label", str)()))
def test_dynamo_holds_the_chips_and_the_options(engine: str, place: str, layout: Layout) -> None:
    on = cluster(place)
    started = command(engine, layout, on, version=engine_version(engine))
    found = parsed(dynamo_manifests([started], [on], "x"))
    graph = found[-1]
    assert graph["kind"] == "DynamoGraphDeployment"
    assert chips_in(found) == layout.num_chips
    assert [one["type"] for one in graph["spec"]["components"]] == ["frontend", "worker"]
    worker = graph["spec"]["components"][1]
    assert worker.get("multinode", {}).get("nodeCount", 1) == started.num_hosts
    args = worker["podTemplate"]["spec"]["containers"][0]["args"]
    if engine == "trtllm":
        config = yaml.safe_load(next(one for one in found if one["kind"] == "ConfigMap")["data"]["engine.yaml"])
        assert config == trtllm_config(started)
        assert config["tensor_parallel_size"] == layout.tp * layout.attention_dp
        assert config["kv_cache_config"] == {"dtype": "fp8", "free_gpu_memory_fraction": 0.9}
        return
    # what the operator sets on each host is left to it, everything else is what `launch` prints
    rest = [word for word in started.words if word not in args]
    assert set(args) - set(started.words) <= {"--model"}
    hosts = {
        "--nnodes", "--node-rank", "--master-addr", "--data-parallel-size-local", "--data-parallel-address",
        "--dist-init-addr",
    }  # fmt: skip
    assert {word for word in rest if word.startswith("--")} <= hosts
    assert "HOST" not in " ".join(args)


def test_dynamo_pools_have_their_types() -> None:
    on = cluster("dgx-h100")
    version = engine_version("vllm")
    both = [
        command("vllm", Layout(tp=2, dp=2), on, "prefill", version),
        command("vllm", Layout(tp=4), on, "decode", version),
    ]
    (graph,) = parsed(dynamo_manifests(both, [on, on], "x"))
    parts = graph["spec"]["components"]
    assert [one["type"] for one in parts] == ["frontend", "prefill", "decode"]
    for one in parts[1:]:
        args = one["podTemplate"]["spec"]["containers"][0]["args"]
        assert args[args.index("--disaggregation-mode") + 1] == one["type"]
        assert "NixlConnector" in args[args.index("--kv-transfer-config") + 1]


@pytest.mark.parametrize(("engine", "place", "layout"), [case for case in CASES if case[0] != "trtllm"])
def test_llm_d_finds_the_servers_by_their_labels(engine: str, place: str, layout: Layout) -> None:
    """The servers of `kubernetes`, with the labels by which the router's chart is told to find them, and no service."""
    on = cluster(place)
    started = command(engine, layout, on)
    found = parsed(llm_d_manifests([started], [on], f"x on {place}"))
    assert chips_in(found) == started.replicas * started.chips_per_replica
    assert "Service" not in {one["kind"] for one in found}
    (server,) = [one for one in found if one["kind"] in ("Deployment", "LeaderWorkerSet")]
    plain = kubernetes_manifests([started], [on], f"x on {place}")
    assert pods_of(server) == next(pods_of(one) for one in plain if one["kind"] == server["kind"])
    said = " ".join(router_lines([started], f"x on {place}"))
    for template in _that_serve(server):
        assert f"guide={template['metadata']['labels']['llm-d.ai/guide']}'" in said
        assert template["metadata"]["labels"]["llm-d.ai/role"] == "decode"
    assert "optimized-baseline" in said
    if server["kind"] == "LeaderWorkerSet":  # only the first host takes requests
        workers = server["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        assert not any(label.startswith("llm-d.ai/") for label in workers["metadata"]["labels"])


def _that_serve(document: dict[str, Any]) -> list[dict[str, Any]]:
    spec = document["spec"]
    return [spec["template"]] if "template" in spec else [spec["leaderWorkerTemplate"]["leaderTemplate"]]


@pytest.mark.parametrize(("engine", "connector"), [("vllm", "nixlv2"), ("sglang", "sglang")])
def test_pools_of_llm_d_decode_behind_a_side_car(engine: str, connector: str) -> None:
    on = cluster("dgx-h100")
    both = [command(engine, Layout(tp=2, dp=2), on, "prefill"), command(engine, Layout(tp=4), on, "decode")]
    first, second = parsed(llm_d_manifests(both, [on, on], "x"))
    assert chips_in([first, second]) == 8
    roles = [_that_serve(one)[0]["metadata"]["labels"]["llm-d.ai/role"] for one in (first, second)]
    assert roles == ["prefill", "decode"]
    assert "initContainers" not in first["spec"]["template"]["spec"]
    pod = second["spec"]["template"]["spec"]
    (car,), (server,) = pod["initContainers"], pod["containers"]
    assert car["restartPolicy"] == "Always"
    assert f"--kv-connector={connector}" in car["args"]
    behind = next(word for word in car["args"] if word.startswith("--model-server-port=")).partition("=")[2]
    words = server["command"]
    assert words[words.index("--port") + 1] == behind
    assert [port["containerPort"] for port in (*car["ports"], *server["ports"])] == [PORT, int(behind)]
    assert server["readinessProbe"]["httpGet"]["port"] == server["ports"][0]["name"]
    assert "pd-disaggregation" in " ".join(router_lines(both, "x"))


def test_what_cannot_be_expressed_is_refused() -> None:
    h100, tpu, mi300x = cluster("h100-96"), cluster("tpu-v5e-16"), cluster("mi300x-8")
    for make, started, on, match in (
        (kubernetes_manifests, command("vllm", Layout(tp=8), tpu), tpu, "chips of NVIDIA and AMD"),
        (kubernetes_manifests, command("trtllm", Layout(tp=16), h100), h100, "mpirun"),
        (llm_d_manifests, command("trtllm", Layout(tp=8), h100), h100, "none is known of trtllm"),
        (llm_d_manifests, command("vllm", Layout(tp=16), h100, "decode"), h100, "one host each"),
        (dynamo_manifests, command("vllm", Layout(tp=8), mi300x), mi300x, "chips of NVIDIA|an image"),
        (dynamo_manifests, command("vllm", Layout(tp=8), h100, version="0.12.0"), h100, "0.28.0"),
        (kubernetes_manifests, command("vllm", Layout(tp=8, ep=4, moe_tp=2), h100), h100, "moe_tp=2 cannot"),
    ):
        with pytest.raises(InputError, match=match):
            make([started], [on], "x")
    with pytest.raises(InputError, match="an answer"):
        kubernetes_manifests([], [], "x")


def test_a_broken_manifest_fails_the_schema() -> None:
    on = cluster("dgx-h100")
    (deployment, _) = kubernetes_manifests([command("vllm", Layout(tp=8), on)], [on], "x")
    deployment["spec"]["template"]["spec"]["containers"][0]["recources"] = {}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema_of("Deployment")).validate(deployment)
    (graph,) = dynamo_manifests([command("vllm", Layout(tp=8), on, version=engine_version("vllm"))], [on], "x")
    graph["spec"]["components"][1]["type"] = "both"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema_of("DynamoGraphDeployment")).validate(graph)


def test_names_are_those_that_kubernetes_allows() -> None:
    assert kubernetes_name("405b", "") == "m-405b"
    long = kubernetes_name("a" * 80, "prefill")
    assert len(long) == 52
    assert long.endswith("-prefill")


def test_products_are_chips_of_the_catalogue() -> None:
    record = orchestrator_record("kubernetes")
    assert set(record.products) <= set(names("chips"))
    assert {name for images in record.images.values() for name in images} <= {*names("chips"), *record.resources}

"""A plan's deployment as a graph of NVIDIA Dynamo: nvidia.com/v1beta1, kind DynamoGraphDeployment.

A frontend, and a worker or a prefill and a decode component. Dynamo's workers take the options of their engine; those
that join the hosts of a replica are set by its operator (deploy/operator/internal/dynamo/backend_vllm.go and the other
two, read on 2026-11-22) and left out here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rackline.catalog import orchestrator_record
from rackline.errors import InputError
from rackline.hardware import Cluster
from rackline.search.kubernetes import (
    Document,
    Workload,
    chips_asked,
    hub_token,
    image_of,
    kubernetes_name,
    pod_spec,
    rack_links,
    shared_memory,
    with_rack_links,
    workloads,
)
from rackline.search.launch import LaunchCommand

_OPERATORS = {  # options with one value each that the operator sets on every host
    "vllm": ("--nnodes", "--node-rank", "--master-addr", "--data-parallel-size-local", "--data-parallel-address"),
    "sglang": ("--nnodes", "--node-rank", "--dist-init-addr"),
    "trtllm": (),
}
_TRTLLM_KEYS = {  # options of trtllm-serve as keys of the file that Dynamo's worker reads
    "--tp_size": ("tensor_parallel_size",),
    "--pp_size": ("pipeline_parallel_size",),
    "--ep_size": ("moe_expert_parallel_size",),
    "--max_batch_size": ("max_batch_size",),
    "--max_num_tokens": ("max_num_tokens",),
    "--max_seq_len": ("max_seq_len",),
    "--kv_cache_free_gpu_memory_fraction": ("kv_cache_config", "free_gpu_memory_fraction"),
}
_TYPES = {"both": "worker", "prefill": "prefill", "decode": "decode"}
_CONFIG = "/etc/engine/engine.yaml"


def engine_version(stack: str) -> str:
    """Version of an engine in Dynamo's images; empty for one that it does not have."""
    return orchestrator_record("dynamo").engines.get(stack, "")


def dynamo_manifests(commands: Sequence[LaunchCommand], places: Sequence[Cluster], name: str) -> list[Document]:
    """Documents of a deployment, in the order in which they are applied.

    Args:
        commands: as `plan_commands` gives them, in the version of Dynamo's engine.
        places: the cluster of each.
        name: of the deployment.

    Raises:
        InputError: what Dynamo cannot express.
    """
    found = workloads(orchestrator_record("dynamo"), commands, places, name)
    graph = kubernetes_name(name)
    documents, template = rack_links(found, graph)
    components: list[Document] = [_frontend(found[0])]
    for one in found:
        documents += _config(one)
        components.append(_component(one, template if one.in_one_domain else ""))
    return [
        *documents,
        {
            "apiVersion": "nvidia.com/v1beta1",
            "kind": "DynamoGraphDeployment",
            "metadata": {"name": graph},
            "spec": {"backendFramework": found[0].command.stack, "env": [hub_token()], "components": components},
        },
    ]


def _frontend(one: Workload) -> Document:
    container = {"name": "main", "image": image_of(orchestrator_record("dynamo"), one)}
    pod = {"spec": {"containers": [container]}}
    return {"name": "Frontend", "type": "frontend", "replicas": 1, "podTemplate": pod}


def _component(one: Workload, template: str) -> Document:
    record, command = orchestrator_record("dynamo"), one.command
    if command.version != record.engines[command.stack]:
        allowed = f"{command.stack} {record.engines[command.stack]}, which Dynamo {record.version} has in its image"
        raise InputError(what="launch_as", given=f"{command.stack}={command.version}", allowed=allowed)
    container: Document = {
        "name": "main",
        "image": image_of(record, one),
        "command": ["python3", "-m", f"dynamo.{command.stack}"],
        "args": worker_args(command),
        "resources": chips_asked(one, record),
    }
    pod = pod_spec(container, one, record)
    if command.stack == "trtllm":
        container["volumeMounts"] = [{"name": "engine", "mountPath": _CONFIG.rpartition("/")[0], "readOnly": True}]
        pod["volumes"] = [{"name": "engine", "configMap": {"name": one.name}}]
    pod = with_rack_links(pod, template) if template else pod
    return {
        "name": _TYPES[command.role],
        "type": _TYPES[command.role],
        "replicas": command.replicas,
        **({"multinode": {"nodeCount": command.num_hosts}} if command.num_hosts > 1 else {}),
        "sharedMemorySize": shared_memory(one),
        "podTemplate": {"spec": pod},
    }


def worker_args(command: LaunchCommand) -> list[str]:
    """Arguments of Dynamo's worker for a command of its engine."""
    role = [] if command.role == "both" else ["--disaggregation-mode", command.role]
    match command.stack:
        case "sglang":
            # the role is an option of the engine itself
            return _without(command.words[command.words.index("--model-path") :], _OPERATORS["sglang"])
        case "trtllm":
            return ["--model-path", command.words[1], "--extra-engine-args", _CONFIG, *role]
        case _:
            return ["--model", command.words[2], *_without(command.words[3:], _OPERATORS["vllm"]), *role]


def _without(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Words without some options and their values."""
    return [
        word
        for index, word in enumerate(words)
        if word not in flags and not (index and words[index - 1] in flags and not word.startswith("--"))
    ]


def _config(one: Workload) -> list[Document]:
    """The file of options of a TensorRT-LLM worker."""
    import yaml

    if one.command.stack != "trtllm":
        return []
    text = yaml.safe_dump(trtllm_config(one.command), sort_keys=False)
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": one.name}, "data": {"engine.yaml": text}}]


def trtllm_config(command: LaunchCommand) -> Mapping[str, Any]:
    """Options of a TensorRT-LLM command as one table of LLM arguments."""
    import yaml

    found: dict[str, Any] = yaml.safe_load("\n".join(command.options_file)) or {}
    for flag, value in zip(command.words, command.words[1:], strict=False):
        if flag in _TRTLLM_KEYS:
            *outer, key = _TRTLLM_KEYS[flag]
            table = found
            for part in outer:
                table = table.setdefault(part, {})
            table[key] = yaml.safe_load(value)
    return found

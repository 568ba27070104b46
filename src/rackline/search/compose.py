"""A plan's deployment as a Compose file: a container for each replica of one host, and the router in front of them.

Every container has an address of its own, the name of its service; replicas keep the ports that `launch` gives them.
Chips are reserved as devices (NVIDIA) or named by the engine's variable (AMD). Files that an engine reads are written
into the file itself; models and adapters that lie on the host are mounted from there, others are loaded from the
Hugging Face Hub into a volume that outlives the containers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rackline.catalog import orchestrator_record
from rackline.errors import InputError
from rackline.hardware import Cluster
from rackline.search.kubernetes import (
    ROLE_NAMES,
    STARTS_WITHIN_S,
    Document,
    Workload,
    image_of,
    kubernetes_name,
    shared_memory,
    workloads,
)
from rackline.search.launch import LaunchCommand
from rackline.search.launch_places import ROUTER_PORT, Start
from rackline.search.launch_plan import router_command

_OPTIONS = "/etc/engine"
_HUB = "/root/.cache/huggingface"
_LOOPBACK = "127.0.0.1"
_CHECKED_EVERY_S = 10


def compose_file(
    commands: Sequence[LaunchCommand], places: Sequence[Cluster], name: str, *, kept_prefixes: bool = False
) -> Document:
    """A Compose file of a deployment on one host.

    Args:
        commands: as `plan_commands` gives them, with their places.
        places: the cluster of each.
        name: of the project.
        kept_prefixes: whether a request should go where its prefix is cached.

    Raises:
        InputError: replicas on several hosts, or what no image of the engine can express.
    """
    found = workloads(orchestrator_record("compose"), commands, places, name)
    hosts = {start.host + more for one in commands for start in one.starts for more in range(start.num_hosts)}
    if len(hosts) > 1:
        allowed = "replicas on one host, such as --chips 8; kubernetes and dynamo start them on several"
        raise InputError(what="launch_as", given=f"compose on {len(hosts)} hosts", allowed=allowed)
    services: dict[str, Document] = {}
    configs: dict[str, Document] = {}
    names: dict[Start, str] = {}
    for number, one in enumerate(found):
        role = "beside" if number and one.command.role == "both" else ROLE_NAMES[one.command.role] or "engine"
        for index, start in enumerate(one.command.starts):
            names[start] = f"{role}-{index}"
            services[names[start]] = _replica(one, start, names[start])
        configs |= _config(one.command, role)
        for index in range(len(one.command.starts)) if one.command.options_file else ():
            services[f"{role}-{index}"]["configs"] = [_mounted(one.command, role)]
    router = router_command(commands, kept_prefixes=kept_prefixes, address=lambda start: f"{names[start]}:{start.port}")
    if router is None:
        ((start, only),) = names.items()
        services[only]["ports"] = [f"{_LOOPBACK}:{start.port}:{start.port}"]
    else:
        services["router"] = _router(router, found[0], list(services))
        configs |= _config(router, "router")
    return {
        "name": kubernetes_name(name),
        "services": services,
        **({"configs": configs} if configs else {}),
        "volumes": {"hub": {}},
    }


def _replica(one: Workload, start: Start, name: str) -> Document:
    """The container of one replica."""
    command, vendor = one.command, one.on.chip.vendor
    words = [
        f"{_OPTIONS}/{word}" if command.options_file and word == command.options_name else word
        for word in command.words
    ]
    words += command.server_words(str(start.port), str(start.side_port))
    chips = start.chips or tuple(range(one.on.host_chips))
    variables = dict((*command.env, *command.server_env(str(start.side_port), name)))
    return {
        "image": _image(one),
        **_started(words),
        "environment": {
            "HF_TOKEN": "${HF_TOKEN:-}",  # of the shell that starts the file; models that need none start without
            **{key: _plain(value) for key, value in variables.items()},
            **({command.chips_variable: ",".join(map(str, chips))} if vendor == "AMD" else {}),
        },
        "expose": [str(start.port)],
        **_devices(vendor, chips),
        # pools on one host hand over KV caches through memory that both see; ranks of one engine need only their own
        **({"ipc": "host"} if command.is_pool else {"shm_size": shared_memory(one).replace("Gi", "gb")}),
        "volumes": [f"hub:{_HUB}", *(f"{path}:{path}:ro" for path in _paths(command.words))],
        "healthcheck": {
            "test": ["CMD", "curl", "--fail", "--silent", f"http://localhost:{start.port}/health"],
            "interval": f"{_CHECKED_EVERY_S}s",
            "retries": 6,
            "start_period": f"{STARTS_WITHIN_S}s",
        },
        "restart": "unless-stopped",
    }


def _image(one: Workload) -> str:
    """Image of an engine: that of Kubernetes, where Compose has none of its own."""
    own = orchestrator_record("compose")
    return image_of(own if one.command.stack in own.images else orchestrator_record("kubernetes"), one)


def _started(words: Sequence[str]) -> Document:
    """The command of a container in place of what its image starts."""
    program = orchestrator_record("compose").programs.get(words[0], words[0])
    return {"entrypoint": [_plain(program)], "command": [_plain(word) for word in words[1:]]}


def _plain(word: str) -> str:
    """A word that Compose takes as it is: it would replace variables."""
    return word.replace("$", "$$")


def _devices(vendor: str, chips: Sequence[int]) -> Document:
    """What a container sees of the host's chips."""
    if vendor == "AMD":
        return {"devices": ["/dev/kfd:/dev/kfd", "/dev/dri:/dev/dri"], "group_add": ["video"]}
    driver = orchestrator_record("compose").resources[vendor]
    if driver == "cpu":
        return {}
    asked = {
        "driver": driver,
        "device_ids": [str(chip) for chip in chips],
        "capabilities": ["gpu"],
    }
    return {"deploy": {"resources": {"reservations": {"devices": [asked]}}}}


def _paths(words: Sequence[str]) -> list[str]:
    """Models and adapters that lie on the host, as words or values of words (`name=/path`)."""
    values = (word.rpartition("=")[2] for word in words)
    return list(dict.fromkeys(_plain(value) for value in values if value.startswith("/")))


def _config(command: LaunchCommand, name: str) -> dict[str, Document]:
    """The file of options that a command reads, by name."""
    text = "\n".join(command.options_file) + "\n"
    return {name: {"content": _plain(text)}} if command.options_file else {}


def _mounted(command: LaunchCommand, name: str) -> Mapping[str, str]:
    return {"source": name, "target": f"{_OPTIONS}/{command.options_name}"}


def _router(router: LaunchCommand, first: Workload, behind: Sequence[str]) -> Document:
    """The container of the router, which starts when all replicas take requests."""
    record, words = orchestrator_record("compose"), list(router.words)
    image, pip = _image(first), ""
    name = f"{router.stack}-router"
    if words[0] == "nginx":
        image = record.images["nginx"]["any"]
    elif name in record.engines:
        image, pip = record.images["python"]["any"], f"{name}=={record.engines[name]}"
    if router.options_file:
        words = [f"{_OPTIONS}/{word}" if word == router.options_name else word for word in words]
    if pip:
        words = ["/bin/sh", "-c", f'pip install --quiet {pip} && exec "$@"', "--", *words]
    return {
        "image": image,
        **_started(words),
        "ports": [f"{_LOOPBACK}:{ROUTER_PORT}:{ROUTER_PORT}"],
        **({"configs": [_mounted(router, "router")]} if router.options_file else {}),
        "depends_on": {name: {"condition": "service_healthy"} for name in behind},
        "restart": "unless-stopped",
    }

"""Launch commands as a script of bash that starts a deployment: one host as it is, several with their addresses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from rackline.search.launch import LaunchCommand
from rackline.search.launch_places import Start

_NAMES = {"both": "replica", "prefill": "prefill replica", "decode": "decode replica"}
_FUNCTIONS = {"both": "replica", "prefill": "prefill", "decode": "decode"}
# words that the script expands; all others are quoted
_EXPANDED = re.compile(r"\$HOST(:\d+)?|\$RANK|\$HOST_SLOTS|\$\(\(RANK \* \d+\)\)")
_ADDRESS = re.compile(r"\$HOST(\d+)")
_OWN_ADDRESS = "\"$(hostname -I | cut -d' ' -f1)\""


def commands_text(commands: Sequence[LaunchCommand]) -> str:
    """A script that starts every replica, and the router in front of several.

    Args:
        commands: of a deployment, with their places.
    """
    router = [one for one in commands if one.role == "router"]
    replicas = [one for one in commands if one.role != "router"]
    parts = [_file(one) for one in replicas if one.options_file]
    hosts = 1 + max(start.host + start.num_hosts - 1 for one in replicas for start in one.starts)
    if hosts == 1 and sum(len(one.starts) for one in replicas) == 1:
        parts += [_alone(one, one.starts[0]) for one in replicas]
        return "\n\n".join(parts)
    names = _function_names(replicas)
    parts += [_function(one, name, several=hosts > 1) for one, name in zip(replicas, names, strict=True)]
    if hosts == 1:
        parts.append("\n".join(_calls(replicas, names, 0)))
        parts += [_router(one) for one in router]
        return "\n\n".join(parts)
    parts.insert(0, _hosts_head(hosts))
    parts.append("\n".join(_by_host(replicas, names, hosts)))
    for one in router:
        parts.append(f'if [ "$NODE" = 0 ]; then\n{_router(one)}\nfi')
    return "\n\n".join([*parts, "wait"])


def _hosts_head(hosts: int) -> str:
    return (
        f"# on each of {hosts} hosts with NODE=0 to {hosts - 1}, its number, and HOSTS='ADDRESS0 ADDRESS1 ...'\n"
        f": ${{NODE:?number of this host, 0 to {hosts - 1}}} ${{HOSTS:?addresses of the {hosts} hosts}}\n"
        "HOSTS=($HOSTS)"
    )


def _file(command: LaunchCommand) -> str:
    return _here(command.options_name, command.options_file, "'END'")


def _here(name: str, lines: Sequence[str], end: str) -> str:
    return "\n".join((f"cat > {name} <<{end}", *lines, end.strip("'")))


def _head(command: LaunchCommand) -> list[str]:
    chips = f"{command.chips_per_replica} chip{'s' if command.chips_per_replica > 1 else ''}"
    times = f", {command.replicas:,} times {chips}" if command.replicas > 1 else ""
    return [f"# {_NAMES[command.role]} with {command.stack} {command.version}{times}"]


def _remarks(command: LaunchCommand) -> list[str]:
    return [f"# {note}" for note in command.notes] + [f"# not in this command: {lack}" for lack in command.lacks]


def _alone(command: LaunchCommand, start: Start) -> str:
    """The only replica, on one host."""
    env = [*_chips(command, _arguments(command, start).get("chips", "")), *command.env]
    text = _command(command.words, env, command.server_words(str(start.port), str(start.side_port)))
    return "\n".join((*_head(command), *_remarks(command), text))


def _chips(command: LaunchCommand, chips: str) -> list[tuple[str, str]]:
    return [(command.chips_variable, chips)] if chips and command.chips_variable else []


def _function_names(replicas: Sequence[LaunchCommand]) -> list[str]:
    names = [_FUNCTIONS[one.role] for one in replicas]
    # an engine that does both after others is the one on chips that they leave free
    return ["beside" if place and name == "replica" else name for place, name in enumerate(names)]


def _function(command: LaunchCommand, name: str, *, several: bool) -> str:
    """A function of the shell that starts a replica."""
    at = {key: f'"${place}"' for place, key in enumerate(_arguments(command, command.starts[0]), start=1)}
    env = [*_chips(command, at.get("chips", "")), *command.env]
    env += command.server_env(at.get("side port", ""), _OWN_ADDRESS if several else "localhost")
    server = command.server_words(at["port"], at.get("side port", ""))
    first = _command([*command.before, *command.words], env, server)
    if command.num_hosts > 1 and command.other_words != command.words:
        others = _command(command.other_words, env, ()) if command.other_words else ":  # mpirun starts these hosts"
        first = f'if [ "$RANK" = 0 ]; then\n{first}\nelse\n{others}\nfi'
    body = "\n".join(f"  {line}" for line in first.splitlines())
    return "\n".join((*_head(command), *_remarks(command), f"{name}() {{  # {', '.join(at)}", body, "}"))


def _arguments(command: LaunchCommand, start: Start) -> dict[str, str]:
    """What a function is told of a replica, by name."""
    found = {"port": str(start.port)}
    if command.needs_side_port:
        found["side port"] = str(start.side_port)
    if start.chips and command.chips_variable:
        found["chips"] = ",".join(map(str, start.chips))
    return found


def _command(words: Sequence[str], env: Sequence[tuple[str, str]], server: Sequence[str]) -> str:
    """A command of the shell; the values of variables and the words of the server are shell text already."""
    before = "".join(f"{name}={value} " for name, value in env)
    text = command_text(words)
    pairs = [f"{flag} {value}" for flag, value in zip(server[::2], server[1::2], strict=True)]
    return (f"{before}\\\n" if before else "") + " \\\n  ".join((text, *pairs))


def command_text(words: Sequence[str]) -> str:
    """Shell text with an option and its value on each line.

    >>> print(command_text(["serve", "m", "--tp", "8", "--fast"]))
    serve m \\
      --tp 8 \\
      --fast
    """
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(f'"{word}"' if _EXPANDED.fullmatch(word) else shlex.quote(word))
    return " \\\n  ".join(" ".join(line) for line in lines if line)


def _calls(replicas: Sequence[LaunchCommand], names: Sequence[str], host: int) -> Iterator[str]:
    """What one host starts in the background."""
    for command, name in zip(replicas, names, strict=True):
        for start in command.starts:
            if start.host <= host < start.host + start.num_hosts:
                yield f"{' '.join((name, *_arguments(command, start).values()))} &"


def _by_host(replicas: Sequence[LaunchCommand], names: Sequence[str], hosts: int) -> Iterator[str]:
    """A `case` over the hosts; those that start the same are one."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for host in range(hosts):
        alike.setdefault((*_group(replicas, host), *_calls(replicas, names, host)), []).append(host)
    yield "case $NODE in"
    for lines, numbers in alike.items():
        yield f"  {'|'.join(map(str, numbers))})"
        yield from (f"    {line}" for line in lines)
        yield "    ;;"
    yield "esac"


def _group(replicas: Sequence[LaunchCommand], host: int) -> Iterator[str]:
    """Variables of a host that is one of several of a replica."""
    for command in replicas:
        for start in command.starts:
            if start.num_hosts > 1 and start.host <= host < start.host + start.num_hosts:
                yield f"HOST=${{HOSTS[{start.host}]}} RANK=$((NODE - {start.host}))"
                if command.before:
                    slots = command.chips_per_replica // start.num_hosts
                    yield f"HOST_SLOTS=$(printf ',%s:{slots}' \"${{HOSTS[@]:{start.host}:{start.num_hosts}}}\")"
                    yield "HOST_SLOTS=${HOST_SLOTS#,}"
                return


def _router(command: LaunchCommand) -> str:
    lines = ["# router"]
    if command.options_file:
        lines.append(_addresses(_here(command.options_name, command.options_file, "END")))
    words = [word if _ADDRESS.search(word) else shlex.quote(word) for word in command.words]
    text: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            text.append([])
        text[-1].append(f'"{_addresses(word)}"' if _ADDRESS.search(word) else word)
    lines.append(" \\\n  ".join(" ".join(line) for line in text if line))
    return "\n".join(lines)


def _addresses(text: str) -> str:
    return _ADDRESS.sub(r"${HOSTS[\1]}", text)

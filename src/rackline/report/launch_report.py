"""Launch commands on the terminal: one line per option group, notes below."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.search.launch import LaunchCommand

NAMES = {"both": "one replica", "prefill": "one prefill replica", "decode": "one decode replica"}


def launch_report(commands: Sequence[LaunchCommand]) -> Group:
    """Commands that can be copied: an option a line."""
    parts: list[RenderableType] = []
    for command in commands:
        parts.append(Text(f"{NAMES[command.role]} with {command.stack}", style="bold"))
        parts.append(Text(command_text(command.words), style="cyan", no_wrap=True, overflow="fold"))
        if command.options_file:
            parts.append(Text("options.yaml:\n" + "\n".join(f"    {line}" for line in command.options_file)))
        parts += [Text(note, style="yellow") for note in (*command.notes, *command.lacks)]
    return Group(*parts)


def commands_text(commands: Sequence[LaunchCommand]) -> str:
    """The same as plain text, its notes as comments of a shell."""
    parts: list[str] = []
    for one in commands:
        head = f"# {NAMES[one.role]} with {one.stack}"
        lines = [head + (f", {one.replicas} times" if one.replicas > 1 else ""), command_text(one.words)]
        if one.options_file:
            lines.append("\n".join(("# options.yaml:", *(f"#     {line}" for line in one.options_file))))
        parts.append("\n".join((*lines, *(f"# {note}" for note in (*one.notes, *one.lacks)))))
    return "\n\n".join(parts)


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
        lines[-1].append(shlex.quote(word))
    return " \\\n  ".join(" ".join(line) for line in lines if line)

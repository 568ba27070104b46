"""Manifests as YAML: what they are on top, then the documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def manifest_text(documents: Sequence[Mapping[str, Any]], about: Sequence[str]) -> str:
    """YAML of several documents.

    Args:
        documents: in the order in which they are applied.
        about: lines of a comment on top.
    """
    import yaml

    head = "".join(f"# {line}\n" for line in about)
    # values that occur twice are written twice: no reader expects anchors in a manifest
    body = yaml.dump_all(documents, Dumper=_plain_dumper(), sort_keys=False, width=120, explicit_start=True)
    return head + body


def _plain_dumper() -> type:
    import yaml

    class Plain(yaml.SafeDumper):
        """Writes no anchors, and files within a manifest line by line."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(_: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return yaml.ScalarNode("tag:yaml.org,2002:str", value, style=style)

    Plain.add_representer(str, text)
    return Plain

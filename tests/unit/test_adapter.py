"""Low-rank adapters: what an adapter_config.json says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hub_server import Hub, Repo, serving
from rackline.errors import ConfigError, HubError
from rackline.hub import read_adapter

CONFIG = {
    "peft_type": "LORA",
    "base_model_name_or_path": "meta-llama/Llama-3.1-8B",
    "r": 16,
    "lora_alpha": 32,
    "target_modules": ["v_proj", "q_proj"],
    "rank_pattern": {"down_proj": 8},
    "modules_to_save": ["lm_head"],
    "bias": "none",
}


def written(folder: Path, **changed: object) -> Path:
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | changed), encoding="utf-8")
    return folder


def test_an_adapter_is_read_by_folder_and_by_file(tmp_path: Path) -> None:
    found = read_adapter(str(written(tmp_path)))
    assert (found.rank, found.alpha, found.base) == (16, 32.0, "meta-llama/Llama-3.1-8B")
    assert found.targets == ("q_proj", "v_proj")
    assert found.rank_pattern == (("down_proj", 8),)
    assert found.trained_whole == ("lm_head",)
    assert read_adapter(str(tmp_path / "adapter_config.json")) == found
    assert read_adapter(str(written(tmp_path, target_modules="all-linear"))).targets == ("all-linear",)


def test_an_adapter_is_read_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(repos={"acme/lora": Repo({"adapter_config.json": json.dumps(CONFIG).encode()}), "acme/none": Repo({})})
    with serving(hub) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        assert read_adapter("acme/lora").rank == 16
        with pytest.raises(HubError, match=r"a repository with adapter_config\.json"):
            read_adapter("acme/none")
        assert read_adapter("acme/lora", offline=True).rank == 16


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type: got 'IA3'"),
        ({"r": 0}, "r: got 0, allowed: a whole number from 1"),
        ({"r": "16"}, "r: got '16'"),
        ({"lora_alpha": "x"}, "lora_alpha: got 'x', allowed: a number"),
        ({"target_modules": []}, "target_modules"),
        ({"target_modules": [1]}, "target_modules: .*a list of names"),
        ({"rank_pattern": {"a": 0}}, "rank_pattern"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_adapter(str(written(tmp_path, **changed)))


def test_what_is_no_adapter(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a folder with adapter_config\.json"):
        read_adapter("not an adapter")
    (tmp_path / "adapter_config.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(ConfigError, match="an object"):
        read_adapter(str(tmp_path))

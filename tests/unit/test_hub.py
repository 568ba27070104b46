"""Models by name: what is read from the Hub, its cache and files, and what is said when it cannot be."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rackline as rl
from hub_server import TOKEN, Hub, Repo, header, serving
from rackline.arch import Model, find_model, found_model
from rackline.errors import HubError
from rackline.hub import RepositoryId, open_repository, repository_checkpoint

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
COMMIT = "a" * 40


def layer(index: int) -> dict[str, tuple[str, list[int]]]:
    at = f"model.layers.{index}."
    return {
        f"{at}self_attn.q_proj.weight": ("BF16", [256, 256]),
        f"{at}self_attn.k_proj.weight": ("BF16", [64, 256]),
        f"{at}self_attn.v_proj.weight": ("BF16", [64, 256]),
        f"{at}self_attn.o_proj.weight": ("BF16", [256, 256]),
        f"{at}mlp.gate_proj.weight": ("BF16", [512, 256]),
        f"{at}mlp.up_proj.weight": ("BF16", [512, 256]),
        f"{at}mlp.down_proj.weight": ("BF16", [256, 512]),
        f"{at}input_layernorm.weight": ("BF16", [256]),
        f"{at}post_attention_layernorm.weight": ("BF16", [256]),
    }


OUTER = {
    "model.embed_tokens.weight": ("BF16", [1000, 256]),
    "lm_head.weight": ("BF16", [1000, 256]),
    "model.norm.weight": ("BF16", [256]),
}


def llama(**more: Any) -> Repo:
    """A small model in two files, with an index."""
    first, second = {**OUTER, **layer(0)}, layer(1)
    files = {"model-1.safetensors": header(first), "model-2.safetensors": header(second)}
    index = {
        "metadata": {"total_size": 2 * PARAMS},
        "weight_map": {**dict.fromkeys(first, "model-1.safetensors"), **dict.fromkeys(second, "model-2.safetensors")},
    }
    config = json.dumps(LLAMA | more).encode()
    return Repo({"config.json": config, "model.safetensors.index.json": json.dumps(index).encode(), **files})


PARAMS = 2 * 1000 * 256 + 256 + 2 * (2 * 256 * 256 + 2 * 64 * 256 + 3 * 512 * 256 + 2 * 256)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub(repos={"acme/tiny": llama()})
    with serving(server) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yield server


def test_a_name_is_read_from_the_hub_then_needs_one_request(hub: Hub) -> None:
    built = rl.model("acme/tiny")
    assert isinstance(built, Model)
    assert built.total_params == PARAMS
    assert built.max_context_len == 4096
    assert built.origin is not None
    assert (built.origin.kind, built.origin.used, built.origin.revision) == ("hub", "acme/tiny", COMMIT)
    hub.requests.clear()
    rl.model("acme/tiny")
    assert hub.requests == ["GET /api/models/acme/tiny"]
    hub.requests.clear()
    rl.model(f"acme/tiny@{COMMIT}")  # a commit never changes
    assert hub.requests == []


def test_the_cache_answers_when_the_network_is_off(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HubError, match=r"a repository in the cache .*network is off"):
        rl.model("acme/tiny", offline=True)
    assert hub.requests == []
    rl.model("acme/tiny")
    hub.requests.clear()
    built = rl.model("acme/tiny", offline=True)
    assert built.origin is not None
    assert built.origin.kind == "cache"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert rl.model("acme/tiny").total_params == PARAMS
    assert hub.requests == []
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    built = rl.model("acme/tiny")
    assert built.origin is not None
    assert built.origin.kind == "cache"
    assert "could not be asked" in built.origin.warnings[0]


def test_revisions(hub: Hub) -> None:
    hub.repos["acme/tiny"].refs["v1"] = "b" * 40
    built = rl.model("acme/tiny@v1")
    assert built.origin is not None
    assert built.origin.revision == "b" * 40
    with pytest.raises(HubError, match=r"there is no revision 'v2'"):
        rl.model("acme/tiny@v2")
    assert RepositoryId.parse("a/b@") is None
    assert RepositoryId.parse("../b") is None
    assert RepositoryId.parse("a/b@../../etc") is None


def test_missing_private_and_gated(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["acme/secret"] = llama()
    hub.repos["acme/secret"].private = True
    hub.repos["acme/closed"] = llama()
    hub.repos["acme/closed"].gated = True
    with pytest.raises(HubError, match=r"none of this name, or it is private and needs a token .HF_TOKEN."):
        rl.model("acme/absent")
    with pytest.raises(HubError, match=r"none of this name, or it is private"):
        rl.model("acme/secret")
    with pytest.raises(HubError, match=r"gated; ask for access at http"):
        rl.model("acme/closed")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert rl.model("acme/secret").total_params == PARAMS
    assert rl.model("acme/closed").total_params == PARAMS
    with pytest.raises(HubError, match=r"an account \(that of HF_TOKEN\)"):
        rl.model("acme/absent")


def test_the_nearest_catalogue_name_is_offered(hub: Hub) -> None:
    with pytest.raises(HubError, match=r"nearest: qwen3-32b"):
        rl.model("Qwen/Qwen3-32Bx")


def test_a_repository_without_a_configuration(hub: Hub) -> None:
    hub.repos["acme/gguf"] = Repo({"model.gguf": b"GGUF"})
    with pytest.raises(HubError, match=r"a repository with config.json: .* has none"):
        rl.model("acme/gguf")


def test_half_a_cache(hub: Hub) -> None:
    repository = open_repository(RepositoryId(name="acme/tiny"))
    repository.file("model.safetensors.index.json")
    with pytest.raises(HubError, match=r"a cached config.json: the cache .* holds the repository without it"):
        rl.model(f"acme/tiny@{COMMIT}", offline=True)


def test_a_renamed_repository_is_followed_and_named(hub: Hub) -> None:
    hub.repos["old/tiny"] = Repo({}, moved_to="acme/tiny")
    built = rl.model("old/tiny")
    assert built.total_params == PARAMS
    assert built.origin is not None
    assert built.origin.used == "acme/tiny"
    assert built.origin.warnings == ("old/tiny is now called acme/tiny",)


def test_redirects_to_storage(hub: Hub) -> None:
    hub.redirects = True
    found = find_model("acme/tiny", headers=True)
    assert found.checkpoint is not None
    assert sum(tensor.elements for tensor in found.checkpoint.tensors) == PARAMS


@pytest.mark.parametrize("pattern", ["GET /api", "HEAD .*config.json"])
def test_a_busy_hub_is_asked_again(hub: Hub, pattern: str) -> None:
    hub.fail(pattern, 429, times=2 if "api" in pattern else 1)
    assert rl.model("acme/tiny").total_params == PARAMS


def test_a_hub_that_stays_busy_or_broken(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rackline.hub.repository.time.sleep", lambda seconds: None)
    hub.fail("GET /api", 429, times=3)
    with pytest.raises(HubError, match=r"429 3 times.*wait, or set HF_TOKEN"):
        rl.model("acme/tiny")
    hub.fail("GET /api", 500, times=3)
    with pytest.raises(HubError, match=r"it said 500 .*ask again later"):
        rl.model("acme/tiny")
    rl.model("acme/tiny")
    hub.fail("GET /api", 503, times=3)
    built = rl.model("acme/tiny")  # the cache has it
    assert built.origin is not None
    assert built.origin.kind == "cache"
    assert "it answered 503" in built.origin.warnings[0]


def test_bodies_that_are_cut_off(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rackline.hub.repository.time.sleep", lambda seconds: None)
    hub.fail("GET .*config.json", 0, times=1)
    assert rl.model("acme/tiny").total_params == PARAMS
    hub.fail("GET .*model-2.safetensors", 0, times=1)
    assert find_model("acme/tiny", headers=True).checkpoint is not None
    hub.repos["acme/other"] = llama()
    hub.fail("GET .*config.json", 0, times=100)
    with pytest.raises(HubError, match=r"a whole config.json: .* cut off"):
        rl.model("acme/other")


def test_tensor_headers_are_read_once_and_never_weights(hub: Hub) -> None:
    big = hub.repos["acme/tiny"].files
    for name in ("model-1.safetensors", "model-2.safetensors"):
        big[name] += b"\0" * 30_000_000
    hub.ignores_range = True  # a mirror that sends whole files: the connection is closed behind the header
    found = find_model("acme/tiny", headers=True)
    assert found.checkpoint is not None
    assert found.checkpoint.total_size == found.checkpoint.stored_bytes == 2 * PARAMS
    hub.requests.clear()
    again = find_model("acme/tiny")
    assert again.checkpoint == found.checkpoint
    assert hub.requests == ["GET /api/models/acme/tiny"]


def test_a_part_is_asked_for_where_the_server_can(hub: Hub) -> None:
    repository = open_repository(RepositoryId(name="acme/tiny"))
    assert repository_checkpoint(repository, fetch=False) is None
    before = hub.sent_bytes
    assert repository_checkpoint(repository, fetch=True) is not None
    assert hub.sent_bytes - before < 20_000


def test_an_index_that_names_a_missing_file(hub: Hub) -> None:
    del hub.repos["acme/tiny"].files["model-2.safetensors"]
    with pytest.raises(HubError, match=r"its index names model-2.safetensors, which is not there"):
        find_model("acme/tiny", headers=True)


def test_what_is_no_header(hub: Hub) -> None:
    hub.repos["acme/tiny"].files["model-2.safetensors"] = b"<!DOCTYPE html>" * 10
    with pytest.raises(HubError, match=r"allowed: a safetensors file"):
        find_model("acme/tiny", headers=True)


def test_a_count_that_is_off_is_a_warning_in_every_answer(hub: Hub) -> None:
    found = found_model(find_model("acme/tiny", headers=True))
    assert found.origin is not None
    assert found.origin.warnings == ()
    hub.repos["acme/wide"] = llama(intermediate_size=768)
    warned = rl.models("acme/wide").warnings
    assert len(warned) == 1
    assert "most in ffn (1.18e+06 counted, 7.864e+05 stored)" in warned[0]
    answer = rl.fit("acme/wide", on="dgx-h100", context="2k")  # headers are known now
    assert answer.warnings == warned
    assert answer.to_dict()["warnings"] == list(warned)
    assert answer.to_dict()["model_origins"][0]["used"] == "acme/wide"


def test_the_hub_s_own_count_is_enough_for_a_warning(hub: Hub) -> None:
    hub.repos["acme/wide"] = llama(intermediate_size=768)
    hub.repos["acme/wide"].safetensors = {"BF16": PARAMS}
    warned = rl.fit("acme/wide", on="dgx-h100", context="2k").warnings
    assert len(warned) == 1
    assert "by the Hub's count of its tensors" in warned[0]
    assert rl.fit("acme/tiny", on="dgx-h100", context="2k").warnings == ()


def test_models_shows_where_the_difference_lies(hub: Hub) -> None:
    data = rl.models("acme/tiny").to_dict()["checkpoint"]
    assert (data["counted_params"], data["stored_params"], data["difference"]) == (PARAMS, PARAMS, 0.0)
    assert {part["kind"] for part in data["parts"]} == {"embedding", "attention", "norm", "ffn", "head"}
    assert all(part["counted"] == part["stored"] for part in data["parts"])
    assert data["params_by_dtype"]["ffn"] == {"bf16": 2 * 3 * 512 * 256}


def test_a_quantised_name_of_the_catalogue(hub: Hub) -> None:
    for name, label in (("Qwen/Qwen3-32B-FP8", "fp8_block"), ("Qwen/Qwen3-32B", "bf16"), ("qwen3-32b", "bf16")):
        assert rl.model(name).native_precision == label
    assert hub.requests == []
    # not listed there: the repository itself decides, and without it the name, which is said
    built = rl.model("Qwen/Qwen3-14B-FP8")
    assert built.native_precision == "fp8"
    assert built.origin is not None
    assert "taken from the name" in built.origin.warnings[0]
    block = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    hub.repos["Qwen/Qwen3-14B-FP8"] = llama(quantization_config=block)
    assert rl.model("Qwen/Qwen3-14B-FP8").native_precision == "fp8_block"


def test_modelopt_says_it_beside_the_configuration(hub: Hub) -> None:
    repo = llama()
    repo.files["hf_quant_config.json"] = json.dumps({"quantization": {"quant_algo": "NVFP4"}}).encode()
    hub.repos["acme/tiny-NVFP4"] = repo
    assert rl.model("acme/tiny-NVFP4").native_precision == "nvfp4"
    hub.repos["acme/small-NVFP4"] = llama()
    built = rl.model("acme/small-NVFP4")
    assert built.origin is not None
    assert "the name says nvfp4" in built.origin.warnings[0]


def test_headers_tell_a_type_that_the_configuration_does_not(hub: Hub) -> None:
    repo = llama()
    tensors = {
        name: ("F8_E4M3" if "proj" in name else dtype, shape)
        for name, (dtype, shape) in {**OUTER, **layer(0), **layer(1)}.items()
    }
    repo.files = {"config.json": repo.files["config.json"], "model.safetensors": header(tensors)}
    hub.repos["acme/eight"] = repo
    found = find_model("acme/eight", headers=True)
    assert found.record.native_precision == "fp8"
    assert "by the tensor headers" in found.origin.warnings[0]


def test_what_if_and_settings_read_the_hub_once(hub: Hub) -> None:
    answer = rl.plan("acme/tiny", on="dgx-h100", input=512, output=64, what_if="hbm_bandwidth=4TB/s,8TB/s")
    assert len(answer.result.points) == 2  # type: ignore[union-attr]
    assert hub.counts()["GET /api/models/acme/tiny"] <= 3
    rl.fit("acme/tiny", on="dgx-h100", set="num_layers=4")


def test_a_context_beyond_the_limit_is_a_warning(hub: Hub) -> None:
    answer = rl.plan("acme/tiny", on="dgx-h100", input=5000, output=64)
    assert "made for 4,096" in answer.warnings[0]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rackline", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_the_command_line(hub: Hub) -> None:
    done = run("models", "acme/tiny")
    assert done.returncode == 0, done.stderr
    assert "against the checkpoint" in done.stdout
    assert "Hugging Face Hub" in done.stdout
    assert done.stderr == ""
    done = run("fit", "acme/tiny", "--on", "dgx-h100", "--offline", "--json")
    assert json.loads(done.stdout)["model_origins"][0]["kind"] == "cache"
    done = run("fit", "acme/none", "--on", "dgx-h100")
    assert done.returncode == 2
    assert done.stderr.startswith("error: model: got 'acme/none'")
    assert done.stderr.count("\n") == 1


def _read(address: str, home: str, results: Any) -> None:
    os.environ.update(HF_ENDPOINT=address, HF_HOME=home, XDG_CACHE_HOME=home)
    results.put(found_model(find_model("acme/tiny", headers=True)).total_params)


def test_two_processes_at_once(hub: Hub, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    readers = [context.Process(target=_read, args=(hub.address, str(tmp_path / "both"), results)) for _ in range(2)]
    for reader in readers:
        reader.start()
    assert [results.get(timeout=1200) for _ in readers] == [PARAMS, PARAMS]
    for reader in readers:
        reader.join()

"""The shipped models: they load, their size is the published one, and their names are found."""

from __future__ import annotations

import pytest

from rackline.arch import AggregateModel, Model, model
from rackline.catalog import Evidence, model_record, names

EXPECTED = {
    "llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b",
    "mistral-7b", "qwen2.5-72b", "qwen3-8b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b",
    "mixtral-8x7b", "mixtral-8x22b", "deepseek-v3", "kimi-k2", "gpt-oss-20b", "gpt-oss-120b",
    "gemma-3-27b", "palm-8b", "palm-62b", "palm-540b", "gpt-3-175b", "llama-4-maverick", "llama-4-scout",
    "lecture-frontier",
}  # fmt: skip

# Counted by the repositories from the tensors themselves: every weight must be there, to the last one.
EXACT_TOTALS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
}

# Published totals that stand for more than the layers: Kimi K2's paper says 1.04 T where its configuration
# gives 1.026 T; Llama 4 Scout's 109 B include the vision encoder.
TOTAL_TOLERANCE = {"kimi-k2": 0.015, "llama-4-scout": 0.012}

# Makers that count the input embedding as active; here it is a lookup and counts nothing.
EMBEDDING_IS_ACTIVE = {"qwen3-30b-a3b", "mixtral-8x7b", "kimi-k2", "llama-4-maverick", "llama-4-scout"}

# arXiv:2505.09343 (ISCA 2025) Table 1 for the first three; 2 * layers * KV heads * head_dim * 2 bytes else.
KV_BYTES_PER_TOKEN_BF16 = {
    "deepseek-v3": 70_272,
    "qwen2.5-72b": 327_680,
    "llama-3.1-405b": 516_096,
    "kimi-k2": 70_272,
    "llama-3.1-70b": 327_680,
    "qwen3-32b": 262_144,
    "qwen3-235b-a22b": 192_512,
    "mixtral-8x7b": 131_072,
    "palm-540b": 120_832,
    "gpt-3-175b": 4_718_592,
}


def shape(name: str) -> Model:
    built = model(name)
    assert isinstance(built, Model)
    return built


def test_catalogue_has_the_expected_models() -> None:
    assert set(names("models")) >= EXPECTED


@pytest.mark.parametrize("name", names("models"))
def test_every_shipped_model_loads_and_builds(name: str) -> None:
    record = model_record(name)
    built = model(name)
    assert built.name == record.name == name
    assert 0 < built.active_params <= built.total_params
    assert built.kv_bytes_per_token(2.0) > 0
    assert built.native_precision == record.native_precision


@pytest.mark.parametrize("name", sorted(n for n in EXPECTED if n != "lecture-frontier"))
def test_total_params_are_the_published_ones(name: str) -> None:
    published = model_record(name).published
    assert published is not None
    assert published.total_params is not None
    assert shape(name).total_params == pytest.approx(published.total_params, rel=TOTAL_TOLERANCE.get(name, 0.005))


@pytest.mark.parametrize("name", sorted(EXACT_TOTALS))
def test_total_params_to_the_last_weight(name: str) -> None:
    assert shape(name).total_params == EXACT_TOTALS[name]
    published = model_record(name).published
    assert published is not None
    assert published.total_params == EXACT_TOTALS[name]


@pytest.mark.parametrize("name", sorted(n for n in EXPECTED if (p := model_record(n).published) and p.active_params))
def test_active_params_are_the_published_ones(name: str) -> None:
    published = model_record(name).published
    assert published is not None
    assert published.active_params is not None
    assert published.rounding is not None
    built = shape(name)
    active = built.active_params
    if name in EMBEDDING_IS_ACTIVE:
        active += built.parameters().total["embedding"]
    assert active == pytest.approx(published.active_params, rel=published.rounding)


@pytest.mark.parametrize("name", sorted(KV_BYTES_PER_TOKEN_BF16))
def test_kv_bytes_per_token(name: str) -> None:
    assert shape(name).kv_bytes_per_token(2.0) == KV_BYTES_PER_TOKEN_BF16[name]


@pytest.mark.parametrize(
    ("name", "window", "windowed", "full"),
    [
        ("gpt-oss-120b", 128, 18, 18),
        ("gpt-oss-20b", 128, 12, 12),
        ("gemma-3-27b", 1024, 52, 10),
        ("mistral-7b", 4096, 32, 0),
        ("llama-4-scout", 8192, 36, 12),
        ("qwen3-32b", None, 0, 64),
    ],
)
def test_layers_with_and_without_window(name: str, window: int | None, windowed: int, full: int) -> None:
    groups = shape(name).layer_groups
    assert sum(g.count for g in groups if g.attention.window is not None) == windowed
    assert sum(g.count for g in groups if g.attention.window is None) == full
    assert {g.attention.window for g in groups} - {None} == ({window} - {None})


def test_window_caps_the_cache_of_its_layers_only() -> None:
    gemma = shape("gemma-3-27b")
    per_layer = 2 * 16 * 128 * 2.0
    assert float(gemma.kv_bytes(100_000)) == pytest.approx(per_layer * (10 * 100_000 + 52 * 1024))


@pytest.mark.parametrize(
    ("name", "mixtures"),
    [("deepseek-v3", 58), ("kimi-k2", 60), ("llama-4-maverick", 24), ("llama-4-scout", 48), ("qwen3-32b", 0)],
)
def test_number_of_mixture_layers(name: str, mixtures: int) -> None:
    groups = shape(name).layer_groups
    assert sum(group.count for group in groups if hasattr(group.ffn, "num_experts")) == mixtures


def test_lecture_model_has_the_numbers_said() -> None:
    frontier = model("lecture-frontier")
    assert isinstance(frontier, AggregateModel)
    assert frontier.active_params == 100e9  # C94
    assert frontier.total_over_active == 8  # C21
    assert frontier.kv_bytes_per_token() == 2048  # C100, "2 KB"
    assert {s.kind for s in model_record("lecture-frontier").sources} == {Evidence.DERIVED}


def test_a_chunk_taken_as_a_window_is_marked_as_assumed() -> None:
    source = model_record("llama-4-maverick").source_of("architecture.attention.window")
    assert source is not None
    assert source.kind is Evidence.ASSUMED


def test_no_two_models_claim_one_alias() -> None:
    owner: dict[str, str] = {}
    for name in names("models"):
        for alias in model_record(name).aliases:
            assert owner.setdefault(alias.lower(), name) == name


@pytest.mark.parametrize("name", names("models"))
def test_every_alias_leads_to_its_model(name: str) -> None:
    for alias in model_record(name).aliases:
        assert model_record(alias).name == name
        assert model_record(alias.upper()).name == name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("meta-llama/Meta-Llama-3.1-405B-Instruct", "llama-3.1-405b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("nvidia/Llama-3.1-70B-Instruct-FP8", "llama-3.1-70b"),
        ("meta-llama/Llama-2-70b-hf", "llama-2-70b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("nvidia/DeepSeek-V3.1-NVFP4", "deepseek-v3"),
        ("nvidia/Kimi-K2.5-NVFP4", "kimi-k2.5"),
        ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"),
        ("gpt3-175b", "gpt-3-175b"),
        ("GPT-175B", "gpt-3-175b"),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", "llama-4-maverick"),
    ],
)
def test_public_names_are_found(given: str, name: str) -> None:
    assert model_record(given).name == name

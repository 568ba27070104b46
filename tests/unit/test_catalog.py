"""The catalogue: strict files, errors that point at the line, names and aliases, overrides, sources."""

import re
import time
from importlib import resources
from operator import attrgetter
from pathlib import Path

import pytest

from rackline import catalog
from rackline.catalog import (
    CalibrationRecord,
    Evidence,
    ModelRecord,
    calibration_record,
    index,
    model_record,
    names,
    settable_keys,
)
from rackline.catalog.base import schema_of
from rackline.catalog.load import line_of, record_of
from rackline.errors import CatalogError, UnknownNameError
from rackline.hardware import ChipRecord, ClusterRecord, chip as load_chip, chip_record, cluster_record, memory_record
from rackline.serving.stack import Stack, stack as load_stack

BF16 = ("gemm", "bf16")

CHIP = """\
name = "my-chip"
full_name = "My chip"
vendor = "Me"
generation = "mine"
hbm_bytes = 80e9
hbm_bytes_per_s = 3e12

[peak_flop_per_s]
bf16 = 1e15

[[sources]]
fields = ["hbm_bytes", "hbm_bytes_per_s", "peak_flop_per_s.*"]
kind = "assumed"
citation = "made up"
"""

MODEL = """\
name = "my-model"
full_name = "My model"

[architecture]
num_layers = 2
d_model = 64
vocab_size = 100

[architecture.attention]
kind = "gqa"
num_q_heads = 4
num_kv_heads = 2
head_dim = 16

[architecture.ffn]
kind = "swiglu"
d_ff = 128

[[sources]]
fields = ["architecture.*"]
kind = "assumed"
citation = "made up"
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


# ------------------------------------------------------------------------------------ what is shipped


@pytest.mark.parametrize("name", names("chips"))
def test_every_chip_loads(name: str) -> None:
    record = chip_record(name)
    assert isinstance(record, ChipRecord)
    peaks = record.peak_flop_per_s
    # Halving the width at most doubles a dense peak (triples it for fp4); a sparse one would stand out. Rubin and
    # Trainium 3 have more units for eight bits than for sixteen.
    sixteen = peaks.bf16 or peaks.fp16
    wide = name.startswith("rubin") or name == "trainium3"
    if peaks.fp8 is not None and sixteen is not None:
        assert peaks.fp8 <= (4.4 if wide else 2.03) * sixteen
    if peaks.fp4 is not None and sixteen is not None:
        assert peaks.fp4 <= (13.1 if wide or name == "rtx-5090" else 6.01) * sixteen
    on_chip = name in ("groq-lpu", "cerebras-wse3")  # memory on the chip drains in microseconds
    assert (1e-6 if on_chip else 0.01) < record.hbm_bytes / record.hbm_bytes_per_s < 0.1


@pytest.mark.parametrize("name", names("clusters"))
def test_every_cluster_loads_and_its_chip_exists(name: str) -> None:
    record = cluster_record(name)
    assert isinstance(record, ClusterRecord)
    assert record.chip in names("chips")
    scale_up = record.levels[0]
    assert record.num_chips % scale_up.size == 0
    if len(record.levels) > 1:
        assert record.levels[1].bytes_per_s_each_way < scale_up.bytes_per_s_each_way


@pytest.mark.parametrize("name", names("calibrations"))
def test_every_calibration_loads(name: str) -> None:
    record = calibration_record(name)
    assert isinstance(record, CalibrationRecord)
    known = {*names("chips"), "*", *(chip_record(chip).generation for chip in names("chips"))}
    assert {entry.chip for entry in (*record.operation, *record.collective)} <= known


CLASSES = {"gemm", "attention_decode", "attention_prefill", "moe", "elementwise", "embedding"}
COLLECTIVES = {"all_reduce_ring", "all_gather", "reduce_scatter", "all_to_all"}
GROUP_SIZES = {0, 2, 4, 8}
# Chips that public kernel tables were measured on, and the stacks of each.
MEASURED = {
    **dict.fromkeys(
        ["a100-sxm-80gb", "l40s", "h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm", "gb200", "gb300", "rtx-pro-6000"],
        ("trtllm", "vllm", "sglang"),
    ),
    "arc-pro-b60": ("vllm",),
}


def test_unit_and_generic_time_every_class_on_any_chip() -> None:
    """`lookup` falls back to data type "*", then bf16: one of them must be there for all chips."""
    for name in ("unit", "generic"):
        record = calibration_record(name)
        fallback = {e.operation_class for e in record.operation if e.dtype in ("*", "bf16") and e.chip == "*"}
        assert fallback >= CLASSES, name
    anywhere = {entry.collective_class for entry in calibration_record("unit").collective if entry.chip == "*"}
    assert "collective" in anywhere
    anywhere = {entry.collective_class for entry in calibration_record("generic").collective if entry.chip == "*"}
    assert anywhere >= COLLECTIVES


def test_unit_calibration_is_the_roofline() -> None:
    record = calibration_record("unit")
    assert record.step_policy == "blackboard"
    assert record.evidence is Evidence.DERIVED
    assert record.host_s_per_step == 0.0
    for entry in record.operation:
        assert (entry.overhead_s, entry.exposed, entry.quantise_s) == (0.0, 0.0, 0.0)
        assert (entry.eta_compute, entry.eta_memory) == (1.0, 1.0)
    for link in record.collective:
        assert (link.overhead_s, link.alpha_s, link.eta_link, link.ramp) == (0.0, 0.0, 1.0, 0.0)


@pytest.mark.parametrize("stack", ["trtllm", "vllm", "sglang"])
def test_a_stack_holds_what_was_measured_under_it_and_says_how_well_it_fits(stack: str) -> None:
    record = calibration_record(stack)
    assert (record.stack, record.step_policy, record.evidence) == (stack, "serial", Evidence.MEASURED)
    assert {entry.chip for entry in record.operation} == {chip for chip in MEASURED if stack in MEASURED[chip]}
    for entry in record.operation:
        which = f"{entry.chip} {entry.operation_class} {entry.dtype}"
        assert entry.evidence is Evidence.MEASURED, which
        assert entry.rows >= 10, which
        assert entry.stack_version, which
        assert 0 < entry.eta_compute <= 1, which
        assert 0 < entry.eta_memory <= 1, which
        assert 0 <= entry.overhead_s < 1e-3, which
        assert entry.median_error is not None, which
        assert entry.p90_error is not None, which
        assert entry.ideal_median_error is not None, which
        assert 0 < entry.median_error <= entry.p90_error, which
        assert entry.median_error < entry.ideal_median_error, f"{which}: no better than the peaks alone"
    for link in record.collective:
        assert link.evidence is Evidence.MEASURED
        exchange = link.collective_class.startswith(("dispatch_", "combine_"))
        assert exchange or link.collective_class in ("all_reduce_one_shot", "all_reduce_two_shot")
        assert link.group_size in (4, 8, 16, 32, 64) if exchange else link.group_size in GROUP_SIZES - {0}
    # static scales are fused: a product in 8 or 4 bits has the launch of bf16, the rest is its quantisation
    launch = {
        entry.chip: entry.overhead_s for entry in record.operation if (entry.operation_class, entry.dtype) == BF16
    }
    narrow = [e for e in record.operation if e.operation_class == "gemm" and e.dtype in ("fp8", "fp8_block", "fp4")]
    assert narrow
    assert all(entry.overhead_s == pytest.approx(launch[entry.chip], rel=0.05) for entry in narrow)


def test_generic_holds_generations_and_what_stacks_share() -> None:
    record = calibration_record("generic")
    assert (record.stack, record.step_policy, record.evidence) == ("any", "serial", Evidence.DERIVED)
    generations = {chip_record(chip).generation for chip in MEASURED}
    assert {entry.chip for entry in record.operation} == {"*", *generations, "cdna3", "cdna4"}  # AMD's own tables
    gemm = {entry.chip for entry in record.operation if (entry.operation_class, entry.dtype) == BF16}
    assert gemm == {"*", *generations, "cdna4"}
    for entry in record.operation:
        small = entry.operation_class in ("elementwise", "embedding")
        assert entry.evidence is (Evidence.ASSUMED if small else Evidence.DERIVED)
        assert 0 < entry.eta_compute <= 1
        assert 0 < entry.eta_memory <= 1
    linked = set(MEASURED) - {"l40s"}  # its table is limited by the host: 8 ranks reach 0.04 of the link
    assert {link.chip for link in record.collective} == {"*", *MEASURED}
    assert {e.collective_class for e in record.collective if e.chip == "l40s"} == {
        f"{name}_staged" for name in ("all_reduce_ring", "all_gather", "reduce_scatter", "all_to_all")
    }
    for chip in linked:
        assert {e.collective_class for e in record.collective if e.chip == chip} >= {"all_reduce_ring", "all_gather"}
    for link in record.collective:
        assert link.group_size in GROUP_SIZES
        assert link.evidence is (Evidence.DERIVED if link.chip == "*" else Evidence.MEASURED)


@pytest.mark.parametrize("name", ["generic", "trtllm", "vllm", "sglang"])
def test_fitted_calibrations_name_the_tables_and_what_is_assumed(name: str) -> None:
    record = calibration_record(name)
    source = record.sources[0]
    assert source.fields == ("*",)
    assert source.url
    assert source.accessed
    assert source.kind is record.evidence
    for position, entry in enumerate(record.operation):
        found = record.source_of(f"operation.{position}.eta_memory")
        assert found is not None
        assert (found.kind is Evidence.ASSUMED) == (entry.evidence is Evidence.ASSUMED)


def test_generations_lie_between_the_chips_that_they_are_made_of() -> None:
    """A parent is a fit to the tables of its chips: none of its shares lies far outside of theirs."""
    entries = [e for stack in ("trtllm", "vllm", "sglang", "atom") for e in calibration_record(stack).operation]
    for parent in calibration_record("generic").operation:
        if (parent.operation_class, parent.dtype) != BF16 or parent.chip == "*":
            continue
        children = [
            e for e in entries if (e.operation_class, e.dtype) == BF16 and chip_record(e.chip).generation == parent.chip
        ]
        assert children
        low, high = min(e.eta_memory for e in children), max(e.eta_memory for e in children)
        assert 0.8 * low <= parent.eta_memory <= 1.25 * high, parent.chip


# ---------------------------------------------------------------------------------------- serving stacks

STACK = """\
name = "my-stack"
full_name = "My stack"

[scheduler]
admission = "chunked"
max_batched_tokens = 4096
max_num_seqs = 128

[memory]
memory_fraction = 0.9

[graphs]
prefill_slowdown = 1.2

[arrivals]
burst_share = 0.5

[kernels]
rank_skew_s = 1e-6

[[sources]]
fields = ["*"]
kind = "assumed"
citation = "made up"
"""


@pytest.mark.parametrize("name", names("stacks"))
def test_every_stack_loads(name: str) -> None:
    record = record_of("stacks", schema_of(Stack), name)
    assert record.name == name
    found = load_stack(name)
    assert found.scheduler.mode().admission == record.scheduler.admission
    for key in settable_keys(record):
        if not key.startswith("defaults."):  # of some versions and chips
            assert attrgetter(key)(found) == attrgetter(key)(record), key
    numbers = set(record.numbers())
    assert {"scheduler.max_batched_tokens", "memory.memory_fraction"} <= numbers
    assert all(record.source_of(key) is not None for key in numbers)


def test_each_fitted_calibration_has_its_stack() -> None:
    """`rackline plan` takes the numbers around the kernels from the stack of the calibration's name."""
    assert {"generic", "trtllm", "vllm", "sglang"} <= set(names("stacks")) & set(names("calibrations"))


@pytest.mark.parametrize(
    ("name", "version", "on", "expected"),
    [
        ("vllm", "0.18.0", "h100-sxm", ("chunked", 8192, 1024, False)),
        ("vllm", "0.18.0", "rtx-4090", ("chunked", 2048, 256, False)),
        ("vllm", "0.6.3.post1", "h100-sxm", ("prefill_first", 8192, 256, False)),
        ("vllm", "v0.2.6", "h100-sxm", ("prefill_first", 8192, 256, True)),
        ("vllm", "nightly", None, ("chunked", 8192, 1024, False)),
        ("sglang", "0.5.9", "b200-sxm", ("prefill_first", 16384, 2048, False)),
        ("sglang", "0.5.9", "h200-sxm", ("prefill_first", 8192, 2048, False)),
        ("sglang", "", "rtx-4090", ("prefill_first", 4096, 2048, False)),
    ],
)
def test_defaults_of_a_version_on_a_chip(name: str, version: str, on: str | None, expected: object) -> None:
    found = load_stack(name, version=version, chip=None if on is None else load_chip(on))
    assert (
        found.scheduler.admission,
        found.scheduler.max_batched_tokens,
        found.scheduler.max_num_seqs,
        found.graphs.eager_decode,
    ) == expected


@pytest.mark.parametrize("rule", ['before = "next"', 'since = "next"', "chip_names = [1]", "hbm_from_bytes = -1.0"])
def test_a_rule_of_defaults_that_cannot_be_read_is_refused(tmp_path: Path, rule: str) -> None:
    text = STACK.replace("[[sources]]", f"[[defaults]]\n{rule}\nscheduler.max_num_seqs = 7\n\n[[sources]]", 1)
    with pytest.raises(CatalogError, match=rule.partition(" ")[0]):
        load_stack(str(write(tmp_path, text)))


def test_a_stack_of_ones_own(tmp_path: Path) -> None:
    found = load_stack(str(write(tmp_path, STACK)))
    assert found.scheduler.max_batched_tokens == 4096
    assert (found.kernels.rank_skew_s, found.graphs.prefill_slowdown) == (1e-6, 1.2)
    assert (found.arrivals.burst_share, found.arrivals.synchrony, found.arrivals.first_token_s) == (0.5, 0.0, 0.0)
    assert found.scheduler.mode().max_batched_tokens == 4096


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "rank_skew_s = 1e-6",
            "rank_skew = 1e-6",
            "line 19: kernels.rank_skew: .*only the keys of the schema; nearest: rank_skew_s",
        ),
        ("rank_skew_s = 1e-6", "rank_skew_s = -1e-6", "line 19: kernels.rank_skew_s"),
        ("rank_skew_s = 1e-6", "rank_skew_s = nan", "line 19: kernels.rank_skew_s"),
        ("prefill_slowdown = 1.2", "prefill_slowdown = 0.9", "line 13: graphs.prefill_slowdown"),
        ("burst_share = 0.5", "burst_share = 1.5", "line 16: arrivals.burst_share"),
        ("burst_share = 0.5", "synchrony = -0.1", "line 16: arrivals.synchrony"),
        ("memory_fraction = 0.9", "memory_fraction = 0.0", "line 10: memory.memory_fraction"),
        ("memory_fraction = 0.9", "memory_fraction = 1.1", "line 10: memory.memory_fraction"),
        ("max_num_seqs = 128", "max_num_seqs = 0", "line 7: scheduler.max_num_seqs"),
        ("max_num_seqs = 128", "max_num_seqs = 1.5", "line 7: scheduler.max_num_seqs"),
        ("max_batched_tokens = 4096\n", "", "scheduler.max_batched_tokens: .*the key is required"),
        ('"chunked"', '"chunk"', "line 5: scheduler.admission"),
        ('fields = ["*"]', 'fields = ["scheduler.max_num_seqs"]', "covers the number scheduler.max_batched_tokens"),
    ],
)
def test_broken_stacks_are_refused_at_their_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in STACK
    with pytest.raises(CatalogError, match=words):
        load_stack(str(write(tmp_path, STACK.replace(old, new))))


def test_unknown_stack_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"stack: got 'vlm', .*nearest: vllm"):
        load_stack("vlm")
    assert load_stack("TensorRT-LLM").name == "trtllm"


@pytest.mark.parametrize("kind", ["chips", "clusters", "memory", "models", "calibrations", "stacks"])
def test_aliases_are_unique_and_never_hide_another_name(kind: str) -> None:
    read = {
        "chips": chip_record,
        "clusters": cluster_record,
        "memory": memory_record,
        "models": model_record,
        "calibrations": calibration_record,
        "stacks": load_stack,
    }[kind]
    owner: dict[str, str] = {name: name for name in names(kind)}  # type: ignore[arg-type]
    for name in names(kind):  # type: ignore[arg-type]
        for alias in read(name).aliases:
            assert owner.setdefault(alias.lower(), name) == name, f"{alias} names two objects"
            assert read(alias).name == name


def test_no_source_names_a_path_of_a_machine() -> None:
    data = resources.files("rackline.catalog").joinpath("data")
    for kind in ("chips", "clusters", "memory", "models", "calibrations", "stacks"):
        for file in data.joinpath(kind).iterdir():
            assert not re.search(r"(/home/|/work/|/tmp/|\.\./)", file.read_text(encoding="utf-8")), file.name


def test_listing_everything_is_quick() -> None:
    start = time.thread_time()
    for kind in ("chips", "clusters", "memory", "models", "calibrations", "stacks"):
        index.alias_index.__wrapped__(kind)
    assert time.thread_time() - start < 1.0  # about 20 ms of the processor; a busy one gets room


def test_a_canonical_name_reads_only_its_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(kind: str) -> dict[str, str]:
        raise AssertionError("the alias index was built")

    monkeypatch.setattr(index, "alias_index", fail)
    assert chip_record("h100-sxm").name == "h100-sxm"


# ------------------------------------------------------------------------------------------- names


def test_aliases_ignore_case() -> None:
    assert chip_record("H100").name == "h100-sxm"
    assert chip_record("Trillium").name == "tpu-v6e"
    assert cluster_record("8xH100").name == "dgx-h100"


def test_unknown_name_shows_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        chip_record("h1000")
    assert caught.value.nearest is not None
    assert "h100-sxm" in caught.value.nearest
    with pytest.raises(UnknownNameError, match="nearest: dgx-h100"):
        cluster_record("dgx-h10")
    with pytest.raises(UnknownNameError):
        chip_record("../chips/h100-sxm")
    with pytest.raises(UnknownNameError):
        chip_record("")
    with pytest.raises(UnknownNameError, match="kind"):
        names("cables")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "spelling",
    [
        "meta-llama/Llama-3.1-70B",
        "LLAMA-3.1-70B",
        "meta-llama/Meta-Llama-3.1-70B-Instruct",
        "nvidia/Llama-3.1-70B-Instruct-FP8",
        "someone/Meta-Llama-3.1-70B-Instruct-NVFP4",
        "llama-3.1-70b-hf",
    ],
)
def test_alias_rules_of_models(spelling: str) -> None:
    wanted = {"llama-3.1-70b"}
    assert wanted & set(index._forms("models", spelling))


def test_alias_rules_do_not_apply_to_chips() -> None:
    assert index._forms("chips", "x/h100-fp8") == ["x/h100-fp8"]


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="existing file"):
        chip_record(str(tmp_path / "h100-sxm.toml"))


# ------------------------------------------------------------------------------------- user files


def test_user_file_by_path(tmp_path: Path) -> None:
    record = chip_record(write(tmp_path, CHIP))
    assert (record.name, record.hbm_bytes, record.peak_flop_per_s.bf16) == ("my-chip", 80e9, 1e15)
    without_suffix = write(tmp_path, CHIP, "mychip")
    assert chip_record(without_suffix).name == "my-chip"
    assert model_record(write(tmp_path, MODEL, "m.toml")).name == "my-model"


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("hbm_bytes = 80e9", 'hbm_bytes = "80GB"', 5, "hbm_bytes: got '80GB', allowed: a valid number"),
        ("hbm_bytes = 80e9", "hbm_bytes = nan", 5, "finite"),
        ("hbm_bytes = 80e9", "hbm_bytes = inf", 5, "finite"),
        ("hbm_bytes = 80e9", "hbm_bytes = -80e9", 5, "greater than 0"),
        ("hbm_bytes = 80e9", "hbm_bytes = 0", 5, "greater than 0"),
        ("hbm_bytes = 80e9", "hbm_bytes = true", 5, "number"),
        ("hbm_bytes = 80e9", "hbm_byte = 80e9", 5, "nearest: hbm_bytes"),
        ("bf16 = 1e15", "bf17 = 1e15", 9, "nearest: bf16"),
        ("bf16 = 1e15", "bf16 = -1.0", 9, "peak_flop_per_s.bf16"),
        ('kind = "assumed"', 'kind = "guessed"', 13, "measured"),
        ('citation = "made up"', "", 11, "citation or a url"),
        ('"hbm_bytes", ', "", 5, "no [[sources]] entry covers the number hbm_bytes"),
        ('"peak_flop_per_s.*"', "", 9, "no [[sources]] entry covers the number peak_flop_per_s.bf16"),
        ("peak_flop_per_s.*", 'peak_flop_per_s.bf16", "power_w', 0, "power_w, which the file does not have"),
        ('vendor = "Me"\n', "", 0, "vendor: got 'nothing', allowed: the key is required"),
        ("hbm_bytes = 80e9", "hbm_bytes = ", 0, "TOML syntax"),
        ('name = "my-chip"', 'name = "My Chip"', 1, "name"),
        ('name = "my-chip"', 'name = "my-chip"\ncores = 1.5', 2, "cores"),
        ('name = "my-chip"', 'name = "my-chip"\nreleased = "soon"', 2, "released"),
    ],
)
def test_bad_file_names_file_key_and_line(tmp_path: Path, old: str, new: str, line: int, words: str) -> None:
    assert old in CHIP
    path = write(tmp_path, CHIP.replace(old, new, 1))
    with pytest.raises(CatalogError) as caught:
        chip_record(path)
    message = str(caught.value)
    assert "mine.toml" in message
    assert words in message
    if line:
        assert f"line {line}:" in message


def test_syntax_error_keeps_its_line(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="line 5"):
        chip_record(write(tmp_path, CHIP.replace("80e9", "80 GB")))


def test_not_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CatalogError, match="UTF-8"):
        chip_record(str(path))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("num_kv_heads = 2", "num_kv_heads = 3", "does not divide"),
        ("head_dim = 16", 'head_dim = 16\npattern = ["window", "full"]', "window is missing"),
        ("head_dim = 16", "head_dims = 16", "nearest: head_dim"),
        ('kind = "gqa"', 'kind = "linear"', "architecture.attention"),
        ("d_ff = 128", "d_ff = 128.5", "line 17: architecture.ffn.d_ff"),
        ("vocab_size = 100", "vocab_size = 100\nfirst_dense = 1", "architecture.first_dense"),
        (
            "[[sources]]",
            "[aggregate]\ntotal_params = 1e9\nactive_params = 1e9\nkv_bytes_per_token = 0\n[[sources]]",
            "aggregate.total_params",
        ),
        (
            "[[sources]]\nfields = [",
            "[aggregate]\ntotal_params = 1e9\nactive_params = 1e9\nkv_bytes_per_token = 0\n"
            '[[sources]]\nfields = ["aggregate.*", ',
            "exactly one of",
        ),
        (
            "[[sources]]",
            "[architecture.moe]\nnum_experts = 4\nexperts_per_token = 8\nd_expert = 3\n[[sources]]",
            "experts_per_token exceeds",
        ),
    ],
)
def test_bad_model(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in MODEL
    with pytest.raises(CatalogError) as caught:
        model_record(write(tmp_path, MODEL.replace(old, new, 1)))
    assert words in str(caught.value)


def test_mla_and_aggregate_models_load(tmp_path: Path) -> None:
    mla = MODEL.replace(
        'kind = "gqa"\nnum_q_heads = 4\nnum_kv_heads = 2\nhead_dim = 16',
        'kind = "mla"\nnum_q_heads = 4\nq_lora_rank = 0\nkv_lora_rank = 32\n'
        "qk_nope_head_dim = 8\nqk_rope_head_dim = 4\nv_head_dim = 8",
    )
    record = model_record(write(tmp_path, mla))
    assert record.architecture is not None
    assert record.architecture.attention.kind == "mla"
    aggregate = (
        'name = "frontier"\nfull_name = "Frontier"\n[aggregate]\ntotal_params = 2e12\nactive_params = 100e9\n'
        'kv_bytes_per_token = 2000.0\n[[sources]]\nfields = ["*"]\nkind = "assumed"\ncitation = "lecture"\n'
    )
    record = model_record(write(tmp_path, aggregate))
    assert record.aggregate is not None
    assert isinstance(record, ModelRecord)
    with pytest.raises(CatalogError, match="active_params exceeds"):
        model_record(write(tmp_path, aggregate.replace("100e9", "100e12")))


def test_calibration_rejects_doubles_and_missing_numbers(tmp_path: Path) -> None:
    entry = '[[operation]]\nclass = "gemm"\ndtype = "*"\noverhead_s = 0.0\neta_compute = 1.0\neta_memory = 1.0\n'
    head = (
        'name = "mine"\nfull_name = "Mine"\nstack = "any"\ndescription = "d"\nevidence = "assumed"\n'
        'step_policy = "serial"\nhost_s_per_step = 0.0\n'
    )
    tail = '[[sources]]\nfields = ["*"]\nkind = "assumed"\ncitation = "made up"\n'
    assert calibration_record(write(tmp_path, head + entry + tail)).operation[0].eta_memory == 1.0
    for broken, words in (
        (head + entry + entry + tail, "two entries for chip"),
        (
            head + entry.replace("eta_memory = 1.0\n", "") + tail,
            "eta_memory",
        ),
        (head + entry.replace("eta_memory = 1.0", "eta_memory = 1.2") + tail, "line 13"),
        (head + entry.replace('"gemm"', '"gem"') + tail, "operation.0.class"),
        (head.replace("serial", "parallel") + entry + tail, "step_policy"),
    ):
        with pytest.raises(CatalogError, match=words):
            calibration_record(write(tmp_path, broken))


# ------------------------------------------------------------------------------------- overrides


def test_override_replaces_the_value_and_marks_it_assumed() -> None:
    record = chip_record("h100-sxm", overrides={"hbm_bytes_per_s": 20e12, "peak_flop_per_s.fp4": "4PFLOP/s"})
    assert record.hbm_bytes_per_s == 20e12
    assert record.peak_flop_per_s.fp4 == 4e15
    source = record.source_of("hbm_bytes_per_s")
    assert source is not None
    assert source.kind is Evidence.ASSUMED
    assert "--set" in (source.citation or "")
    untouched = record.source_of("peak_flop_per_s.bf16")
    assert untouched is not None
    assert untouched.kind is Evidence.VENDOR
    assert chip_record("h100-sxm").hbm_bytes_per_s == 3.35e12


def test_override_reaches_into_levels_and_models(tmp_path: Path) -> None:
    record = cluster_record("gb200-nvl72", overrides={"levels.scale_up.size": "144", "num_chips": 144.0})
    assert (record.levels[0].size, record.num_chips) == (144, 144)
    model = model_record(
        write(tmp_path, MODEL),
        overrides={"architecture.attention.num_kv_heads": "1", "architecture.tied_embeddings": "true"},
    )
    assert model.architecture is not None
    assert model.architecture.attention.num_kv_heads == 1  # type: ignore[union-attr]
    assert model.architecture.tied_embeddings is True


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"hbm_byte": 1.0}, "override: got 'hbm_byte', allowed: a key of h100-sxm; nearest: hbm_bytes"),
        ({"name": "x"}, "got 'name'"),
        ({"hbm_bytes": -1.0}, "override: hbm_bytes: got -1.0, allowed: greater than 0"),
        ({"hbm_bytes": "3 parsecs"}, "bytes such as 141GB"),
        ({"hbm_bytes": float("nan")}, "finite"),
        ({"hbm_bytes": None}, "hbm_bytes"),
        ({"cores": 1.5}, "cores"),
        ({"vendor": 3}, "vendor"),
    ],
)
def test_bad_override_is_blamed_on_the_override(overrides: dict[str, object], words: str) -> None:
    with pytest.raises(CatalogError) as caught:
        chip_record("h100-sxm", overrides=overrides)
    assert words in str(caught.value)
    assert str(caught.value).startswith("override")


def test_settable_keys_are_all_settable() -> None:
    record = chip_record("h100-sxm")
    keys = settable_keys(record)
    assert {"hbm_bytes", "peak_flop_per_s.fp4", "power_w"} <= set(keys)
    assert not {"name", "sources", "aliases"} & set(keys)
    values: dict[str, object] = {
        "vendor": "x",
        "generation": "x",
        "released": "2030",
        "inline_ecc": True,
        "grace": True,
    }
    values |= {"rent_kind": "owned"} | {key: "2030" for key in keys if key.endswith(".date")}
    for key in keys:
        chip_record("h100-sxm", overrides={key: values.get(key, 2)})


# ----------------------------------------------------------------------------------------- sources


def test_numbers_lists_what_the_file_sets() -> None:
    numbers = cluster_record("tpu-v5e-16").numbers()
    assert numbers["levels.scale_up.torus_axes.0"] == 4
    assert numbers["num_chips"] == 16
    assert "power_w_per_chip" not in numbers


def test_last_source_of_a_key_wins() -> None:
    source = chip_record("a100-sxm-40gb").source_of("hbm_bytes_per_s")
    assert source is not None
    assert source.citation == "NVIDIA A100 data sheet"


# ------------------------------------------------------------------------------------------- lines


def test_line_of_finds_keys_in_tables_arrays_and_nested_arrays() -> None:
    head = 'a = 1\n# a = 9\n[t]\nx = 1\n[t.u]\n"y" = 2\n'
    text = f"{head}[[l]]\nz = 3\n[[l]]\nz = 4\n[l.m]\nq = 5\n[[l.n]]\nr = 6\nd.e = 7\n"
    assert line_of(text, ("a",)) == 1
    assert line_of(text, ("t", "x")) == 4
    assert line_of(text, ("t", "u", "y")) == 6
    assert line_of(text, ("l", 0, "z")) == 8
    assert line_of(text, ("l", 1, "z")) == 10
    assert line_of(text, ("l", 1, "m", "q")) == 12
    assert line_of(text, ("l", 1, "n", 0, "r")) == 14
    assert line_of(text, ("l", 1, "n", 0, "d", "e")) == 15
    assert line_of(text, ("t", "missing")) == 3
    assert line_of(text, ("nowhere",)) is None


def test_public_names_exist() -> None:
    for name in catalog.__all__:
        assert hasattr(catalog, name)

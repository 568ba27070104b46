"""Tables that name their operation: read by declarations, counted as the rows of a pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rackline.arch import Model, model
from rackline.errors import InputError
from rackline.fitting.collectives import exchange_wire_s
from rackline.fitting.fit import groups_of, seconds, terms_of
from rackline.fitting.modules import LAYERS, parts, seconds as layer_seconds
from rackline.fitting.tables import FORMATS, Measurements, read_tables
from rackline.hardware import chip
from rackline.parallel import Layout
from rackline.parallel.blocks import attention_rows, ends_rows
from rackline.parallel.precision import Precision
from rackline.passes import Batch, calibration
from rackline.passes.row import total
from rackline.validation import read_cases

CHIPS = ("h100-sxm", "b200-sxm")
HEAD = "chip,stack,stack_version,op_name,kernel_source"
MODULE = f"{HEAD},model,architecture,mla_dtype,kv_cache_dtype,gemm_type,num_heads,batch_size,isl,tp_size,step,seconds"
STATE = (
    f"{HEAD},phase,batch_size,seq_len,num_tokens,d_model,d_conv,num_k_heads,head_k_dim,num_v_heads,head_v_dim,"
    "model_name,seconds"
)
B200 = chip("b200-sxm")


def read(folder: Path, header: str, *lines: str) -> list[Measurements]:
    path = folder / "kernels.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return read_tables([path], CHIPS)


def test_columns_are_read_under_the_names_of_the_source(tmp_path: Path) -> None:
    header = (
        f"{HEAD},batch_size,isl,num_heads,num_key_value_heads,head_dim,beam_width,attn_dtype,kv_cache_dtype,step,"
        "seconds,window_size"
    )
    row = "h100-sxm,vllm,0.25.0,generation_attention,fa3,4,1,32,8,128,1,bfloat16,fp8,4095,2e-5"
    wide = row.replace(",128,1,", ",512,1,")
    (table,) = read(tmp_path, header, f"{row},0", f"{row},128", f"{wide},0")
    assert (table.table, table.labels) == ("attention_decode", ("bfloat16", "fp8"))
    assert table.columns["context"].tolist() == [4096.0]  # a token reads itself
    assert table.columns["window"].tolist() == [0.0]  # windows and wide heads run other kernels: read, but not fitted
    scored = read_cases([tmp_path / "kernels.csv"]).cases
    assert sorted((case.text("window", "0"), case.text("head_dim")) for case in scored) == [
        ("0", "128"), ("0", "512"), ("128", "128")
    ]  # fmt: skip
    windowed = replace(table, columns={**table.columns, "window": np.array([128.0])})
    chips = {B200.name: B200, "h100-sxm": chip("h100-sxm")}
    flop = [groups_of([replace_rows(one, 12)], chips)[0].work.flop[0] for one in (table, windowed)]
    assert flop[0] == pytest.approx(32 * flop[1])


def replace_rows(table: Measurements, times: int = 6) -> Measurements:
    """The same rows several times, so that there are enough to fit."""
    return replace(
        table,
        columns={name: np.tile(values, times) for name, values in table.columns.items()},
        words={name: words * times for name, words in table.words.items()},
        seconds=np.tile(table.seconds, times),
        families=np.tile(table.families, times),
    )


@pytest.mark.parametrize(
    ("op", "dtype", "size", "expected"),
    [("all_reduce", "half", 1024, 2048.0), ("all_gather", "int8", 1024, 1024.0)],
)
def test_messages_are_counted_in_elements(tmp_path: Path, op: str, dtype: str, size: int, expected: float) -> None:
    header = f"{HEAD},nccl_dtype,num_gpus,message_size,seconds"
    (table,) = read(tmp_path, header, f"h100-sxm,nccl,2.29.2,{op},NCCL,{dtype},8,{size},1e-5")
    assert (table.table, table.labels) == ("collective", (op, "8"))
    assert table.columns["message_bytes"].tolist() == [expected]


def test_an_older_version_that_takes_the_same_time_adds_its_shapes(tmp_path: Path) -> None:
    header = f"{HEAD},gemm_dtype,m,n,k,seconds"
    rows = [
        f"h100-sxm,vllm,{version},gemm,a,bfloat16,{m},128,{k},{seconds}"
        for version, k, seconds in (("1.1", 128, 1e-5), ("1.0", 128, 1.02e-5), ("1.0", 256, 2e-5), ("0.9", 128, 2e-5))
        for m in range(1, 13)
    ]
    (table,) = read(
        tmp_path, header, *rows, *(row.replace("1.0", "0.9").replace("2e-5", "9e-5") for row in rows[24:36])
    )
    assert table.stack_version == "1.1"
    assert sorted(set(table.columns["k"])) == [128.0, 256.0]
    assert table.seconds.tolist().count(2e-5) == 12  # of 1.0, not of 0.9, which takes twice as long
    assert [older.stack_version for older in table.older] == ["1.0", "0.9"]


def versions(folder: Path, *rows: tuple[str, str, int, float], shapes: int = 12) -> Measurements:
    """Products of versions (version, kernel, k, seconds), `shapes` of each."""
    lines = [
        f"h100-sxm,vllm,{version},gemm,{kernel},bfloat16,{m},128,{k},{seconds}"
        for version, kernel, k, seconds in rows
        for m in range(1, shapes + 1)
    ]
    (table,) = read(folder, f"{HEAD},gemm_dtype,m,n,k,seconds", *lines)
    return table


def test_shapes_of_an_older_version_are_taken_at_its_ratio(tmp_path: Path) -> None:
    table = versions(tmp_path, ("1.1", "a", 128, 1e-5), ("1.0", "a", 128, 2e-5), ("1.0", "a", 256, 6e-5))
    assert (table.stack_version, len(table.seconds)) == ("1.1", 24)
    assert table.seconds[table.columns["k"] == 256] == pytest.approx(3e-5)
    (older,) = table.older
    assert older.newest_s is not None
    assert older.seconds / older.newest_s == pytest.approx(2.0)


def test_an_older_version_of_other_shapes_stands_by_itself(tmp_path: Path) -> None:
    rows = (("1.1", "a", 128, 1e-5), ("1.0", "a", 128, 1e-5), ("1.0", "a", 256, 2e-5))
    table = versions(tmp_path, *rows, shapes=6)
    assert len(table.seconds) == 6
    assert [(older.stack_version, older.newest_s) for older in table.older] == [("1.0", None)]
    assert versions(tmp_path, ("1.1", "a", 128, 1e-5), ("1.0", "a", 256, 2e-5), shapes=9).older[0].newest_s is None
    few = versions(tmp_path, ("1.1", "a", 128, 1e-5), ("1.1", "a", 512, 1e-5), ("1.0", "a", 256, 2e-5))
    assert few.older == ()


def test_kernels_that_share_no_family_are_not_mixed(tmp_path: Path) -> None:
    """A second kernel of the same data type, for shapes of another model."""
    table = versions(
        tmp_path,
        ("1.1", "a", 128, 1e-5), ("1.1", "a", 256, 1e-5), ("1.1", "b", 256, 9e-6), ("1.1", "other", 512, 9e-4),
    )  # fmt: skip
    assert sorted(set(table.columns["k"])) == [128.0, 256.0]
    assert sorted(set(table.seconds.tolist())) == [9e-6, 1e-5]
    assert table.slower_rows == 24


def sparse(folder: Path, op: str = "dsa_generation_module", **cells: object) -> Measurements:
    given = {"heads": 16, "batch": 8, "tokens": 1, "prefix": 4096} | cells
    line = (
        "b200-sxm,vllm,0.24.0,{op},a,deepseek-ai/DeepSeek-V3.2,X,bfloat16,bfloat16,bfloat16,{heads},{batch},{tokens},1,"
        "{prefix},1e-4"
    )
    (table,) = read(folder, MODULE, line.format(op=op, **given))
    return table


def test_a_module_is_the_sum_of_the_rows_of_its_layer(tmp_path: Path) -> None:
    """The attention rows of DeepSeek-V3.2 on eight chips, a layer of them, and one launch more for the rotation."""
    table = sparse(tmp_path)
    owner = model("deepseek-v3.2")
    assert isinstance(owner, Model)
    group = owner.layer_groups[0]
    one = replace(owner, layer_groups=(replace(group, count=1),))
    rows = attention_rows(one, Layout(tp=8), Precision(label="t"), B200)
    batch = Batch(decode_sequences=8.0, decode_tokens=1.0, context_len=4097.0)
    features = batch.features(one.cores())
    (part,) = parts(table, B200)
    found = {row.name: row for row in part.rows}
    for row in rows:
        for what in ("compute", "hbm", "launches", "depth"):
            expected = float(total(getattr(row, what), features))
            mine = np.broadcast_to(total(getattr(found[row.name], what), part.features), (1,))
            assert float(mine[0]) == pytest.approx(expected), (row.name, what)
    assert set(found) - {row.name for row in rows} == {"norm_rope_activation"}


def test_a_layer_that_uses_an_earlier_choice_has_no_indexer(tmp_path: Path) -> None:
    names = {
        op: {row.op_class for part in parts(sparse(tmp_path, op), B200) for row in part.rows}
        for op in ("dsa_generation_module", "dsa_generation_module_skip_indexer")
    }
    assert names["dsa_generation_module"] - names["dsa_generation_module_skip_indexer"] == {
        "index_decode",
        "index_prefill",
    }


def test_heads_that_pick_their_own_entries_fill_tiles_of_64(tmp_path: Path) -> None:
    flop = {
        heads: next(
            float(np.broadcast_to(total(row.compute, part.features), (1,))[0])
            for part in parts(sparse(tmp_path, heads=heads), B200)
            for row in part.rows
            if row.op_class == "sparse_decode"
        )
        for heads in (8, 64, 128)
    }
    assert flop[8] == flop[64] == flop[128] / 2


def test_fitted_and_known_rows_add_up_to_the_module(tmp_path: Path) -> None:
    """With the shipped numbers in place of fitted ones, both ways of timing a module agree."""
    table = replace_rows(sparse(tmp_path), 10)
    (group,) = groups_of([table], {B200.name: B200})
    shipped = calibration("vllm", B200)
    values = {}
    for term in terms_of(group.work):
        op_class, _, name = term.name.rpartition(".")
        numbers = shipped.lookup(op_class or group.work.op_class, group.work.dtype)
        values[term.name] = 0.0 if name == "cached" else getattr(numbers, name)
    assert seconds(values, group.work) == pytest.approx(layer_seconds(table, B200, shipped), rel=1e-9)


def test_a_prompt_moves_its_state_once_and_a_decoded_token_each_time(tmp_path: Path) -> None:
    line = "b200-sxm,vllm,0.25.0,gdn,{},{},4,{},0,4096,4,16,128,32,128,m,1e-4"
    tables = read(
        tmp_path,
        STATE,
        line.format("chunk", "context", 100),
        line.format("fused", "generation", 1),
        line.format("causal_conv1d_update", "generation", 1),
        line.format("flashinfer_gated_delta_rule_decode", "generation", 1),
    )
    assert [table.table for table in tables] == ["gated_delta_decode", "gated_delta_prefill", "convolution_decode"]
    state = 2 * 4.0 * 4 * 32 * 128 * 128  # read and written in fp32, four sequences
    moved = {}
    for table in tables[:2]:
        (part,) = parts(table, B200)
        moved[table.table] = float(np.broadcast_to(total(part.rows[0].hbm, part.features), (1,))[0])
    per_token = 2.0 * 32 * (4 * 128)
    assert moved["gated_delta_decode"] == pytest.approx(state + 4 * per_token)
    chunks = 2.0 * 2 * 32 * 128 * 128 / 64
    assert moved["gated_delta_prefill"] == pytest.approx(state + 400 * (per_token + chunks))


def test_every_layer_format_is_declared_and_fits_rows_of_its_own() -> None:
    assert {name for name in FORMATS if name in LAYERS} == set(LAYERS)
    owners: dict[str, str] = {}
    for form in FORMATS.values():
        for name in form.fits if form.name in LAYERS and not form.name.startswith("mla") else ():
            assert owners.setdefault(name, form.name) == form.name


def test_hyper_connections_are_part_of_a_pass_of_a_model_with_streams() -> None:
    found = model("deepseek-v4-pro")
    assert isinstance(found, Model)
    rows = {row.name: row for row in ends_rows(found, Layout(), Precision(label="t"), B200)}
    assert rows["hyper_connections_pre"].launches == {"1": 2.0 * found.num_layers}
    assert rows["hyper_connections_post"].hbm["tokens"] == 2.0 * 9 * 7168 * 2 * found.num_layers
    plain = model("deepseek-v3")
    assert isinstance(plain, Model)
    assert not [row for row in ends_rows(plain, Layout(), Precision(label="t"), B200) if "hyper" in row.name]


def test_cases_of_a_table_and_one_that_no_format_is_of(tmp_path: Path) -> None:
    sparse(tmp_path)
    path = tmp_path / "kernels.csv"
    path.write_text(path.read_text() + path.read_text().splitlines()[1].replace("dsa_generation_module", "odd") + "\n")
    found = read_cases([path])
    assert [case.text("op") for case in found.cases] == ["sparse_attention_decode"]
    assert ["operation: got 'odd'" in one.cause for one in found.unsupported] == [True]


def test_an_unknown_type_of_products_is_refused(tmp_path: Path) -> None:
    table = sparse(tmp_path)
    with pytest.raises(InputError, match="gemm_type: got 'fp3', allowed: bfloat16"):
        list(parts(replace(table, words={**table.words, "gemm_type": ("fp3",)}), B200))


EXCHANGE = (
    f"{HEAD},comm_backend,phase,comm_dtype,ep_size,node_num,hidden_size,topk,num_experts,num_tokens,sms,transmit_us,"
    "notify_us,seconds"
)


def test_an_exchange_of_experts_is_read_in_seconds_and_by_method(tmp_path: Path) -> None:
    row = "h100-sxm,trtllm,1.3,moe_a2a,deepep,trtllm_deepep_{},{},{},8,1,4096,6,256,128,0,80,5,0.085"
    tables = read(
        tmp_path,
        EXCHANGE,
        row.format("ll", "dispatch", "fp8"),
        row.format("ht", "combine", "nvfp4"), row.format("ht", "dispatch", "nvfp4"),
        "h100-sxm,vllm,0.24,moe_a2a,deepep,deepep_v2_context,dispatch,default,8,1,4096,6,256,128,0,80,5,0.085",
    )  # fmt: skip
    assert {table.labels: table.columns["element_bytes"].tolist() for table in tables} == {
        ("low_latency", "dispatch", "8"): [1.03125],
        ("high_throughput", "combine", "8"): [2.0],  # results come back in bf16
        ("high_throughput_fp4", "dispatch", "8"): [0.5625],
    }
    assert all(table.seconds.tolist() == pytest.approx([85e-6]) for table in tables)


def test_a_row_of_prompts_kernels_is_dispatch_and_combine(tmp_path: Path) -> None:
    header = (
        f"{HEAD},node_num,hidden_size,num_token,num_topk,num_experts,dispatch_sms,dispatch_transmit_us,"
        "dispatch_notify_us,combine_sms,combine_transmit_us,combine_notify_us"
    )
    row = "h100-sxm,sglang,0.5.12,normal,deepep,2,7168,4096,8,256,{0},900,10,{0},1200,0"
    tables = read(tmp_path, header, row.format(20), row.format(4))
    assert [(table.labels, table.seconds.tolist()) for table in tables] == [
        (("high_throughput", "combine", "16"), [1.2e-3]),
        (("high_throughput", "dispatch", "16"), [pytest.approx(9.1e-4)]),
    ]  # fmt: skip
    assert len(read_cases([tmp_path / "kernels.csv"]).cases) == 4  # fewer cores are scored, not fitted


def test_a_token_is_sent_once_to_a_rank_or_to_each_of_its_experts() -> None:
    one = {
        "tokens": 100.0,
        "d_model": 1000.0,
        "top_k": 8.0,
        "num_experts": 64.0,
        "num_nodes": 1.0,
        "element_bytes": 2.0,
    }
    columns = {name: np.array([value]) for name, value in one.items()}
    direct = exchange_wire_s("low_latency", columns, 2.0, (1e9, 1e9))[0]
    once = exchange_wire_s("high_throughput", columns, 2.0, (1e9, 1e9))[0]
    assert direct == pytest.approx(100 * 1000 * 2 * 8 * 0.5 / 1e9)
    assert once == pytest.approx(direct / 8 * 2, rel=0.01)  # eight of 64 experts are nearly always on both ranks
    slow = exchange_wire_s("high_throughput", {**columns, "num_nodes": np.array([2.0])}, 4.0, (1e12, 1e9))[0]
    assert slow == pytest.approx(100 * 1000 * 2 * 2 * 0.5 / 1e9, rel=0.01)  # once for each domain, beyond the slow link


def test_products_of_latents_are_one_a_head(tmp_path: Path) -> None:
    header = f"{HEAD},bmm_dtype,num_tokens,num_heads,seconds"
    lines = [
        f"h100-sxm,vllm,1.0,mla_gen_{part},a,bfloat16,{m},16,1e-5" for part in ("pre", "post") for m in range(1, 7)
    ]
    (table,) = read(tmp_path, header, *lines)
    work = groups_of([table], {"h100-sxm": chip("h100-sxm")})[0].work
    assert (work.op_class, work.dtype) == ("latent_product", "bf16")
    assert work.flop[0] == pytest.approx(2 * 128 * 512 * 16)
    assert sorted(set(work.depth)) == [128.0, 512.0]

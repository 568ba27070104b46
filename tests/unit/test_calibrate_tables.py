"""Operation tables: what is read, what is refused, where."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rackline.catalog import version_key
from rackline.errors import InputError
from rackline.fitting.tables import read_tables

CHIPS = ("h100-sxm", "b200-sxm")
HEADER = "chip,stack,stack_version,kernel,dtype,m,n,k,seconds"
GOOD = "h100-sxm,vllm,1.0,a,bfloat16,8,128,128,1e-5"


def write(folder: Path, *lines: str, header: str = HEADER, name: str = "gemm.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_keeps_the_fastest_kernel_of_the_latest_version(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "h100-sxm,vllm,0.9.0,a,bfloat16,8,128,128,1e-6",
        "h100-sxm,vllm,0.24.0rc2,a,bfloat16,8,128,128,2e-6",
        "h100-sxm,vllm,0.24.0,a,bfloat16,8,128,128,5e-6",
        "h100-sxm,vllm,0.24.0,b,bfloat16,8,128,128,4e-6",
        "h100-sxm,vllm,0.24.0,b,bfloat16,16,128,128,6e-6",
    )
    (table,) = read_tables([path], CHIPS)
    assert table.stack_version == "0.24.0"
    assert table.seconds.tolist() == [4e-6, 6e-6]
    assert table.columns["m"].tolist() == [8.0, 16.0]
    assert (table.older_rows, table.slower_rows) == (2, 1)
    assert np.unique(table.families).size == 1  # one (n, k)


def test_a_data_type_has_the_newest_version_that_measured_it(tmp_path: Path) -> None:
    """A commit has no place among versions."""
    path = write(
        tmp_path,
        "h100-sxm,vllm,0.9,a,fp8,8,128,128,1e-6",
        "h100-sxm,vllm,1.0,a,bfloat16,8,128,128,1e-5",
        "h100-sxm,vllm,dev-1aa0e9,a,bfloat16,8,128,128,1e-6",
    )
    found = {table.labels: (table.stack_version, table.seconds.tolist()) for table in read_tables([path], CHIPS)}
    assert found == {("bfloat16",): ("1.0", [1e-5]), ("fp8",): ("0.9", [1e-6])}


def test_versions_are_ordered_by_number() -> None:
    given = ["2.29.2", "2.27.10", "2.27.9", "1.3.0rc20", "1.3.0rc3", "1.3.0", "0.5.6.post2", "0.5.6"]
    expected = ["0.5.6", "0.5.6.post2", "1.3.0rc3", "1.3.0rc20", "1.3.0", "2.27.9", "2.27.10", "2.29.2"]
    assert sorted(given, key=version_key) == expected


@pytest.mark.parametrize("seconds", ["-1e-5", "0", "nan", "inf", "", "fast"])
def test_a_time_that_is_no_positive_number_names_file_and_line(tmp_path: Path, seconds: str) -> None:
    path = write(tmp_path, GOOD, f"h100-sxm,vllm,1.0,a,bfloat16,8,128,128,{seconds}")
    with pytest.raises(InputError) as caught:
        read_tables([path], CHIPS)
    assert f"{path}:3" in str(caught.value)
    assert "seconds" in str(caught.value)


def test_an_unknown_chip_names_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("h100-sxm", "h100"))
    with pytest.raises(InputError, match=r"gemm\.csv:2: chip: got 'h100'.*nearest: h100-sxm"):
        read_tables([path], CHIPS)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "h100-sxm,vllm,1.0,a,bfloat16,8,64,1e-5", header=HEADER.replace(",k,", ","))
    with pytest.raises(InputError, match=r"gemm\.csv:1: columns of a gemm table.*also k$"):
        read_tables([path], CHIPS)


def test_a_truncated_line_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, "h100-sxm,vllm,1.0,a,bfl")
    with pytest.raises(InputError, match=r"gemm\.csv:3: line: got '5 values', allowed: 9 values"):
        read_tables([path], CHIPS)


def test_an_empty_table_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one row"):
        read_tables([write(tmp_path)], CHIPS)
    with pytest.raises(InputError, match="No such file"):
        read_tables([tmp_path / "none.csv"], CHIPS)


def test_a_table_is_known_by_its_columns_not_its_name(tmp_path: Path) -> None:
    header = "chip,stack,stack_version,collective,num_chips,message_bytes,seconds"
    path = write(tmp_path, "h100-sxm,nccl,2.29,all_reduce,8,1024,1e-5", header=header, name="mine.csv")
    (table,) = read_tables([path], CHIPS)
    assert (table.table, table.labels) == ("collective", ("all_reduce", "8"))


ROCM_GEMM = "chip,stack,stack_version,kernel,dtype,scaling,m,n,k,seconds"
ROCM_MOE = (
    "chip,stack,stack_version,kernel,act_dtype,weight_dtype,scaling,tokens,d_model,d_ff,top_k,num_experts,gated,seconds"
)


def test_tables_of_rocm_libraries_are_one_stack(tmp_path: Path) -> None:
    """Data types by scaling; the fastest library of a shape counts; what has no like here is left out."""
    gemm = tmp_path / "gemm_aiter.csv"
    gemm.write_text(
        f"{ROCM_GEMM}\n"
        "mi300x,aiter,e4,ck,fp8,block_1x128_128x128,16,4096,7168,2e-5\n"
        "mi300x,hipblaslt,v4.1,hipblaslt,fp8,per_tensor,16,4096,7168,3e-5\n"
        "mi300x,aiter,e4,ck,fp8,per_token_channel,16,4096,7168,1.5e-5\n"
        "mi300x,aiter,e4,ck,fp8,odd,16,4096,7168,1e-6\n",
        encoding="utf-8",
    )
    moe = tmp_path / "moe_aiter.csv"
    moe.write_text(
        f"{ROCM_MOE}\n"
        "mi355x,aiter,e4,2stage,fp8,fp4,per_1x32,64,7168,256,8,256,1,1e-4\n"
        "mi355x,aiter,e4,2stage,fp8,fp4,per_1x32,64,7168,256,8,256,0,1e-5\n",
        encoding="utf-8",
    )
    found = {
        (one.table, one.chip, one.stack, one.labels): one for one in read_tables([gemm, moe], ["mi300x", "mi355x"])
    }
    assert set(found) == {
        ("gemm", "mi300x", "atom", ("fp8_block",)),
        ("gemm", "mi300x", "atom", ("fp8",)),
        ("moe", "mi355x", "atom", ("w4a8_mxfp4_mxfp8",)),
    }
    assert found["gemm", "mi300x", "atom", ("fp8",)].seconds.tolist() == [1.5e-5]
    experts = found["moe", "mi355x", "atom", ("w4a8_mxfp4_mxfp8",)]
    assert experts.seconds.tolist() == [1e-4]
    assert experts.words["distribution"] == ("balanced",)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("all_to_some,8", r"collective: got 'all_to_some', allowed: all_reduce, .*; nearest: all_to_all$"),
        ("all_reduce,eight", r"num_chips: got 'eight', allowed: a number above 0$"),
        ("all_reduce,0", r"num_chips: got '0', allowed: a number above 0$"),
    ],
)
def test_a_collective_is_one_that_is_known_and_has_chips(line: str, problem: str, tmp_path: Path) -> None:
    header = "chip,stack,stack_version,collective,num_chips,message_bytes,seconds"
    good = "h100-sxm,nccl,2.29,all_to_all,8,1024,1e-5"
    path = write(tmp_path, good, f"h100-sxm,nccl,2.29,{line},1024,1e-5", header=header, name="mine.csv")
    with pytest.raises(InputError, match=rf"mine\.csv:3: {problem}"):
        read_tables([path], CHIPS)

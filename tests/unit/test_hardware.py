"""Chips and clusters: peaks, ridge points, levels, and what the ledger expects of them."""

import pickle
from dataclasses import fields
from pathlib import Path

import pytest

from rackline import hardware
from rackline.catalog import names
from rackline.catalog.base import inner_models, schema_of
from rackline.catalog.index import folder
from rackline.errors import CatalogError, LayoutError, PrecisionError, UnknownNameError
from rackline.hardware import Chip, Cluster, FabricLevel, MemoryTier

CLUSTER = """\
name = "my-node"
full_name = "My node"
chip = "{chip}"
num_chips = 4

[[levels]]
name = "scale_up"
size = 4
bytes_per_s_each_way = 100e9
latency_s = 1e-6
topology = "{topology}"
{axes}
[[sources]]
fields = ["*"]
kind = "assumed"
citation = "made up"
"""


@pytest.mark.parametrize(
    ("name", "dtype", "ratio"),
    [
        ("h100-sxm", "bf16", 295),
        ("h200-sxm", "bf16", 206),
        ("a100-sxm-40gb", "bf16", 201),
        ("a100-sxm-80gb", "bf16", 153),
        ("b200-sxm", "bf16", 281),
    ],
)
def test_ridge_points_of_the_ledger(name: str, dtype: str, ratio: int) -> None:
    assert round(hardware.chip(name).ridge_point(dtype)) == ratio


def test_ridge_point_in_weights_of_narrow_types() -> None:
    # With b bytes a weight and 2 FLOP a multiply-add, the batch that balances is ridge * b / 2.
    h100, b200, gb300 = (hardware.chip(n) for n in ("h100-sxm", "b200-sxm", "gb300"))
    assert round(h100.ridge_point("fp8") * 1.0 / 2) == 295
    assert round(b200.ridge_point("fp4") * 0.5 / 2) == 281
    assert round(gb300.ridge_point("fp4") * 0.5 / 2) == 469


@pytest.mark.parametrize(
    ("name", "milliseconds"),
    [
        ("a100-sxm-40gb", 25.7),
        ("a100-sxm-80gb", 39.2),
        ("h100-sxm", 23.9),
        ("h200-sxm", 29.4),
        ("gb300", 36.0),
        ("tpu-v5e", 19.5),
        ("tpu-v5p", 34.4),
        ("tpu-v6e", 19.5),
        ("tpu-v7", 26.1),
    ],
)
def test_drain_times_of_the_ledger(name: str, milliseconds: float) -> None:
    """Printed capacities are decimal (40 GB); drivers report binary ones (40,960 MiB), 3 to 9 % more."""
    assert 1.03 < hardware.chip(name).drain_s * 1e3 / milliseconds < 1.09


def test_b200_reports_192_gb_and_drains_them_in_24_ms() -> None:
    assert hardware.chip("b200-sxm").hbm_bytes == pytest.approx(192e9, rel=0.002)
    assert hardware.chip("b200-sxm", {"hbm_bytes": 192e9}).drain_s == pytest.approx(24e-3)


def test_unsupported_data_type_names_the_supported() -> None:
    with pytest.raises(PrecisionError) as caught:
        hardware.chip("h100-sxm").flop_per_s("fp4")
    assert "bf16, fp16, fp8, int8, fp32" in str(caught.value)
    with pytest.raises(PrecisionError):
        hardware.chip("tpu-v5e").flop_per_s("fp8")
    assert not hardware.chip("a100").supports("fp8")
    assert hardware.chip("gb200").supports("fp4")


def test_a_chip_is_frozen_hashable_and_picklable() -> None:
    chip = hardware.chip("h100-sxm")
    with pytest.raises(AttributeError):
        chip.hbm_bytes = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        chip.peak_flop_per_s["bf16"] = 1.0  # type: ignore[index]
    assert hash(chip) == hash(hardware.chip("h100"))
    assert pickle.loads(pickle.dumps(chip)) == chip
    rack = hardware.cluster("gb200-nvl72")
    assert pickle.loads(pickle.dumps(rack)) == rack


@pytest.mark.parametrize("name", names("clusters"))
def test_every_cluster_builds(name: str) -> None:
    cluster = hardware.cluster(name)
    assert cluster.scale_up.name == "scale_up"
    assert cluster.num_chips <= cluster.max_chips
    if cluster.scale_out is not None:
        assert cluster.scale_out.name == "scale_out"


@pytest.mark.parametrize(
    ("name", "axes", "link", "chips"),
    [
        ("tpu-v5e-256", (16, 16), 45e9, 256),
        ("tpu-v5p-64", (4, 4, 4), 90e9, 64),
        ("tpu-v4-64", (4, 4, 4), 45e9, 64),
        ("tpu-v7-64", (4, 4, 4), 100e9, 64),
    ],
)
def test_torus_rate_is_two_links_for_each_axis(name: str, axes: tuple[int, ...], link: float, chips: int) -> None:
    level = hardware.cluster(name).scale_up
    assert (level.topology, level.torus_axes, level.size) == ("torus", axes, chips)
    assert level.bytes_per_s_each_way == pytest.approx(2 * len(axes) * link)


def test_nodes_and_racks() -> None:
    rack = hardware.cluster("gb200-nvl72")
    assert (rack.num_chips, rack.scale_up.size, rack.chip.name) == (72, 72, "gb200")
    wide = hardware.cluster("h800-144")
    assert (wide.num_chips, wide.scale_up.size) == (144, 8)
    assert wide.scale_out is not None
    assert wide.scale_out.bytes_per_s_each_way == 50e9
    assert hardware.cluster("h100-96").num_chips == 96
    assert rack.usd_per_hour == pytest.approx(72 * 3.3)
    assert hardware.cluster("h20-8").usd_per_hour is None


def test_with_num_chips() -> None:
    node = hardware.cluster("dgx-h100")
    assert node.with_num_chips(16).num_chips == 16
    assert node.with_num_chips(16).scale_up == node.scale_up
    assert node.num_chips == 8
    for cluster, bad, nearest in ((node, 0, "1"), (node, -3, "1"), (hardware.cluster("l40s-8"), 16, "8")):
        with pytest.raises(LayoutError) as caught:
            cluster.with_num_chips(bad)
        assert caught.value.nearest == nearest


def test_overrides_reach_cluster_and_chip() -> None:
    rack = hardware.cluster(
        "gb200-nvl72",
        {
            "hbm_bytes_per_s": "20TB/s",
            "levels.scale_up.bytes_per_s_each_way": 1.8e12,
            "usd_per_chip_hour": 5,
            "chip.usd_per_chip_hour": 7,
        },
    )
    assert rack.chip.hbm_bytes_per_s == 20e12
    assert rack.scale_up.bytes_per_s_each_way == 1.8e12
    assert (rack.usd_per_chip_hour, rack.chip.usd_per_chip_hour) == (5.0, 7.0)
    assert hardware.cluster("dgx-h100", {"chip": "h200-sxm"}).chip.name == "h200-sxm"
    for key, nearest in (("hbm_bytes_per_ss", "hbm_bytes_per_s"), ("num_chip", "num_chips")):
        with pytest.raises(CatalogError) as caught:
            hardware.cluster("gb200-nvl72", {key: 1})
        assert caught.value.nearest == nearest
    with pytest.raises(CatalogError, match="num_chips 99999 exceeds"):
        hardware.cluster("gb200-nvl72", {"num_chips": 99999})


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError, match="dgx-h100"):
        hardware.cluster("dgx-h10")
    # the name of a chip stands for its usual machine
    assert hardware.cluster("h100-sxm").name == hardware.cluster("h100").name == "dgx-h100"


def test_user_cluster_with_the_users_chip_beside_it(tmp_path: Path) -> None:
    chip = (
        'name = "my-chip"\nfull_name = "C"\nvendor = "V"\ngeneration = "g"\nhbm_bytes = 1e9\n'
        "hbm_bytes_per_s = 1e11\npeak_flop_per_s = { bf16 = 1e13 }\n"
        '[[sources]]\nfields = ["*"]\nkind = "assumed"\ncitation = "made up"\n'
    )
    (tmp_path / "my-chip.toml").write_text(chip)
    path = tmp_path / "node.toml"
    path.write_text(CLUSTER.format(chip="my-chip.toml", topology="switch", axes=""))
    cluster = hardware.cluster(str(path), {"hbm_bytes": "2GB"})
    assert (cluster.name, cluster.chip.name, cluster.chip.hbm_bytes) == ("my-node", "my-chip", 2e9)
    path.write_text(CLUSTER.format(chip="h100-sxm", topology="switch", axes=""))
    assert hardware.cluster(str(path)).chip.name == "h100-sxm"
    path.write_text(CLUSTER.format(chip="h999", topology="switch", axes=""))
    with pytest.raises(UnknownNameError, match="chip: got 'h999'"):
        hardware.cluster(str(path))


@pytest.mark.parametrize(
    ("topology", "axes", "words"),
    [
        ("torus", "", "torus_axes belong"),
        ("switch", "torus_axes = [2, 2]", "torus_axes belong"),
        ("torus", "torus_axes = [2, 3]", "multiply to 6"),
        ("ring", "", "topology"),
    ],
)
def test_bad_topology(tmp_path: Path, topology: str, axes: str, words: str) -> None:
    path = tmp_path / "node.toml"
    path.write_text(CLUSTER.format(chip="h100-sxm", topology=topology, axes=axes))
    with pytest.raises(CatalogError, match=words):
        hardware.cluster(str(path))


def test_the_way_to_the_host_is_a_number_of_the_chip() -> None:
    speeds = {name: hardware.host_bytes_per_s(hardware.chip(name)) for name in ("gb200", "h100-sxm", "a100-sxm-80gb")}
    assert speeds == {"gb200": 400e9, "h100-sxm": 50e9, "a100-sxm-80gb": 25e9}
    assert hardware.host_bytes_per_s(hardware.chip("h100-sxm", {"host_bytes_per_s": "450GB/s"})) == 450e9
    assert {name for name in names("chips") if hardware.chip(name).grace} == {"gb200", "gb300", "gh200"}


def test_a_number_of_a_file_is_a_field_of_its_object() -> None:
    """Chips, clusters and memory tiers have no record of their own: what a file may hold follows from their fields."""
    for kind in (Chip, Cluster, FabricLevel, MemoryTier):
        known = set(schema_of(kind).model_fields) if kind is not FabricLevel else set(level_fields())
        own = {field.name for field in fields(kind) if field.metadata.get("in_files", True)}
        assert known == own, kind


def level_fields() -> set[str]:
    (level,) = inner_models(schema_of(Cluster).model_fields["levels"])
    return set(level.model_fields)


def test_levels_of_a_file_are_objects_and_stay_checked(tmp_path: Path) -> None:
    text = (folder("clusters") / "dgx-h100.toml").read_text(encoding="utf-8")
    file = tmp_path / "mine.toml"
    file.write_text(text.replace('topology = "switch"', 'topology = "torus"', 1), encoding="utf-8")
    with pytest.raises(CatalogError, match=r"torus_axes|in_network_reduction"):
        hardware.cluster(str(file))
    assert isinstance(hardware.cluster("dgx-h100").scale_up, FabricLevel)

"""Memory tiers of the catalogue: what their records hold and what follows from two of their numbers."""

from pathlib import Path

import pytest

from rackline.catalog import names
from rackline.errors import CatalogError, UnknownNameError
from rackline.hardware import memory_record

YEARS_S = 4 * 365.25 * 86400


@pytest.mark.parametrize("name", names("memory"))
def test_every_tier_loads(name: str) -> None:
    record = memory_record(name)
    assert record.name == name
    assert all(record.source_of(key) is not None for key in record.numbers())
    if record.usd_per_byte is not None and record.usd_per_hour is not None:
        written_off = record.usd_per_byte * record.capacity_bytes / (YEARS_S / 3600)
        assert record.usd_per_hour == pytest.approx(written_off, rel=1e-3)


def test_all_tiers_of_the_lecture_are_there() -> None:
    assert {memory_record(name).tier for name in names("memory")} == {
        "sram",
        "hbm",
        "host_dram",
        "cxl",
        "nvme",
        "qlc",
        "disk",
    }


@pytest.mark.parametrize(
    ("name", "drain_s"),
    [  # ledger G17: capacity over bandwidth of example parts
        ("lpddr5x-grace", 0.96),
        ("nvme-4tb", 571.0),
        ("qlc-31tb", 1.2 * 3600),
        ("qlc-61tb", 2.4 * 3600),
        ("qlc-123tb", 4.6 * 3600),
        ("hdd-20tb", 19.5 * 3600),
    ],
)
def test_drain_times_of_the_ledger(name: str, drain_s: float) -> None:
    record = memory_record(name)
    assert record.capacity_bytes / record.bytes_per_s == pytest.approx(drain_s, rel=0.025)


def test_slower_tiers_cost_less() -> None:
    order = ("hbm3e", "ddr5-host", "nvme-gen5", "qlc-61tb", "hdd-20tb")
    prices = [memory_record(name).usd_per_byte or 0.0 for name in order]
    assert all(prices)
    assert prices == sorted(prices, reverse=True)


def test_bad_tiers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="memory tier: got 'nvm'"):
        memory_record("nvm")
    file = tmp_path / "mine.toml"
    file.write_text(
        'name = "mine"\nfull_name = "Mine"\ntier = "tape"\nunit = "one"\ncapacity_bytes = 1e12\nbytes_per_s = 1e9\n'
        'latency_s = 1.0\n[[sources]]\nfields = ["*"]\nkind = "assumed"\ncitation = "made up"\n'
    )
    with pytest.raises(CatalogError, match="line 3: tier"):
        memory_record(str(file))
    assert memory_record("hdd", overrides={"usd_per_byte": 1e-11}).usd_per_byte == 1e-11

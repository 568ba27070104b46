"""Reading the catalogue; run once as tests, timed with `--benchmark-enable` (bars: 150 ms all, 5 ms a model)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rackline.arch import build_model
from rackline.catalog import calibration_record, model_record, names
from rackline.hardware import chip_record, cluster_record, memory_record
from rackline.serving.stack import stack

READERS: dict[str, Callable[[str], Any]] = {
    "chips": chip_record,
    "clusters": cluster_record,
    "memory": memory_record,
    "models": model_record,
    "calibrations": calibration_record,
    "stacks": stack,
}


def test_whole_catalogue(benchmark: Any) -> None:
    def read() -> int:
        return sum(1 for kind, reader in READERS.items() for name in names(kind) if reader(name))  # type: ignore[arg-type]

    assert benchmark(read) > 150


def test_one_model(benchmark: Any) -> None:
    assert benchmark(lambda: build_model(model_record("deepseek-v4-pro"))).num_layers == 61

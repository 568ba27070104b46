"""Many adapters in one pass: different ones that are used, their memory and the bytes that they add."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rackline as rl
from rackline.arch.adapters import AppliedAdapter
from rackline.errors import InputError

ON: dict[str, Any] = {"on": "dgx-a100", "layout": "tp=1", "precision": "bf16"}


def folder(path: Path, rank: int) -> str:
    config = {"peft_type": "LORA", "r": rank, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
    (path / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def passed(path: Path, adapters: int, batch: int = 64, **more: Any) -> Any:
    asked = {**ON, "model": "llama-2-7b", "adapter": folder(path, 32), "context": 400, **more}
    return rl.explain(batch=batch, adapters=adapters, **asked).result.explanation


def test_different_adapters_are_those_of_random_choices() -> None:
    rng = np.random.default_rng(0)
    for resident, sequences in ((4, 3), (50, 64), (1000, 200)):
        drawn = [len(set(rng.integers(0, resident, sequences).tolist())) for _ in range(2000)]
        used = AppliedAdapter(name="a", base="", modules=(), number=resident, resident=resident).used_by(sequences)
        assert used.touched == pytest.approx(np.mean(drawn), rel=0.01)
    assert AppliedAdapter(name="a", base="", modules=()).used_by(64).touched == 1.0


def test_each_adapter_that_is_used_is_read_once(tmp_path: Path) -> None:
    one, many = passed(tmp_path, 1), passed(tmp_path, 100)
    touched = 100 * (1 - (1 - 1 / 100) ** 64)
    assert many.deployment.model.adapter.touched == pytest.approx(touched)
    read = [{row.name: row.amounts.get("hbm", 0.0) for row in found.time.rows} for found in (one, many)]
    each = one.deployment.model.adapter.stored_bytes
    more = sum(read[1].values()) - sum(read[0].values())
    assert more == pytest.approx(each * (touched - 1), rel=1e-6)
    assert {name for name in read[0] if read[0][name] != read[1][name]} == {n for n in read[0] if n.startswith("lora_")}
    assert many.memory.weights["adapter"] == pytest.approx(100 * one.memory.weights["adapter"])
    assert passed(tmp_path, 100, batch=1).time.seconds == pytest.approx(passed(tmp_path, 1, batch=1).time.seconds)


def test_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only with `adapter`"):
        rl.explain("llama-2-7b", **ON, batch=1, context=400, adapters=3)
    with pytest.raises(InputError, match="adapters"):
        passed(tmp_path, 0)

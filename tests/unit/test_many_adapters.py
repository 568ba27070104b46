"""Many adapters in one pass: different ones that are used, their memory and the bytes that they add."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rackline as rl
from rackline.arch.applied_adapter import AppliedAdapter
from rackline.errors import InputError

MEASURED = Path("../shared/measured/post_training/lora/slora_serving.csv")
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
        used = AppliedAdapter(name="a", base="", modules=(), resident=resident).used_by(sequences)
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


# setting of S-LoRA → model, cluster, mean rank (its ranks are used alike), sequences that fit beside the adapters
_SETTINGS = {
    ("S1", "a100-80"): ("llama-2-7b", "dgx-a100", 8, 200),
    ("S2", "a100-80"): ("llama-2-7b", "dgx-a100", 30, 200),
    ("S4", "a100-80"): ("llama-2-13b", "dgx-a100", 37, 100),
    ("S4", "a100-40"): ("llama-2-13b", "dgx-a100-40gb", 37, 20),
}
MEAN_CONTEXT = 390  # prompts and answers of 8 to 512 tokens, an answer half done


@pytest.mark.skipif(not MEASURED.is_file(), reason="needs ../shared/measured")
def test_throughput_over_the_number_of_adapters(tmp_path: Path) -> None:
    """S-LoRA at more requests than it serves, against its run with the fewest adapters at that rate, within 15 %.

    Left out: runs that kept up with the requests, a single adapter (which it merges or runs by other kernels), and
    settings with one number of adapters.
    """
    groups: dict[tuple[str, str, str], dict[int, float]] = {}
    with MEASURED.open() as file:
        for row in csv.DictReader(file):
            if row["system"] != "slora" or row["cv"] != "1" or row["alpha"] != "1" or not row["num_adapters"]:
                continue
            key, adapters = (row["setting"], row["chip"], row["req_rate"]), int(row["num_adapters"])
            served = float(row["throughput_req_s"])
            if key[:2] in _SETTINGS and adapters > 1 and served < 0.85 * float(row["req_rate"]):
                groups.setdefault(key, {})[adapters] = served
    errors: dict[tuple[str, str, str, int], float] = {}
    for key, served in groups.items():
        model, cluster, rank, batch = _SETTINGS[key[0], key[1]]

        def step_s(adapters: int) -> float:
            asked = {**ON, "model": model, "on": cluster, "adapter": folder(tmp_path, rank), "context": MEAN_CONTEXT}  # noqa: B023
            return rl.explain(batch=batch, adapters=adapters, **asked).result.explanation.time.seconds  # noqa: B023

        fewest = min(served)
        for adapters in sorted(served.keys() - {fewest}):
            predicted, measured = step_s(fewest) / step_s(adapters), served[adapters] / served[fewest]
            errors[*key, adapters] = predicted / measured - 1.0
    assert len(errors) >= 7
    assert max(map(abs, errors.values())) < 0.15, errors
    assert float(np.median(np.abs(list(errors.values())))) < 0.06

"""A release or chip in the catalogue: what is stored, replaced or kept, what got worse, what ships."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rackline import calibrate
from rackline.api.calibrate import Onboarded
from rackline.catalog import calibration_record, names
from rackline.catalog.index import build_hash, folder
from rackline.catalog.load import forget
from rackline.errors import CatalogError, InputError
from rackline.fitting.amounts import amounts
from rackline.fitting.fit import seconds
from rackline.fitting.onboard import ships
from rackline.fitting.tables import read_tables
from rackline.hardware import chip
from rackline.passes import calibration

HEAD = "chip,stack,stack_version,dtype,m,n,k,seconds"
SHAPES = [(m, n, k) for m in (1, 16, 64, 512, 4096) for n in (1024, 8192) for k in (1024, 4096, 16384)]
PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"


@pytest.fixture(autouse=True)
def catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's own catalogue, in a folder of the test."""
    own = tmp_path / "catalogue"
    monkeypatch.setenv("RACKLINE_CATALOGUE", str(own))
    forget()
    yield own
    monkeypatch.undo()
    forget()


def table(path: Path, factor: float = 1.0, noise: float = 0.02, *, on: str = "h100-sxm", version: str = "0.33") -> str:
    """Products in bf16 as the stored numbers of vLLM on H100 have them, times a factor, with noise."""
    lines = [f"{on},vllm,{version},bfloat16,{m},{n},{k},1.0" for m, n, k in SHAPES]
    path.write_text("\n".join([HEAD, *lines]) + "\n")
    (measured,) = read_tables([path], [on])
    times = seconds(stored_values(), amounts(measured, chip("h100-sxm")))
    times = times * factor * np.exp(np.random.default_rng(3).normal(0.0, noise, len(times)))
    cells = zip(*measured.columns.values(), times.tolist(), strict=True)
    lines = [f"{on},vllm,{version},bfloat16,{m:.0f},{n:.0f},{k:.0f},{t!r}" for m, n, k, t in cells]
    path.write_text("\n".join([HEAD, *lines]) + "\n")
    return str(path)


def stored_values() -> dict[str, float]:
    numbers = calibration("vllm", chip("h100-sxm")).operations["gemm", "bf16"]
    return {name: getattr(numbers, name) for name in ("overhead_s", "eta_compute", "eta_memory", "exposed", "depth_s")}


def onboarded(*tables: str, **asked: object) -> Onboarded:
    found = calibrate(list(tables), processes=1, **asked).result
    assert isinstance(found, Onboarded)
    return found


def test_other_kernels_replace_the_stored_numbers_which_stay_those_of_older_versions(tmp_path: Path) -> None:
    before = calibration("vllm", chip("h100-sxm")).operations["gemm", "bf16"]
    found = onboarded(table(tmp_path / "gemm.csv", 1.6), release="vllm=0.33")
    (group,) = found.onboarding.groups
    assert (group.verdict, group.stored_version) == ("replaced", before.version)
    assert group.stored_error == pytest.approx(0.6, abs=0.05)
    assert group.errors.median_error is not None
    assert group.errors.median_error < 0.05
    assert group.errors.family_median_error is not None
    now = calibration("vllm=0.33", chip("h100-sxm")).operations["gemm", "bf16"]
    assert (now.version, now.eta_memory < 0.8 * before.eta_memory) == ("0.33", True)
    older = calibration(f"vllm={before.version}", chip("h100-sxm")).operations["gemm", "bf16"]
    assert older.eta_memory == before.eta_memory
    others = {entry.chip for entry in calibration_record("vllm").operation}
    assert {"b200-sxm", "a100-sxm-80gb"} <= others


def test_numbers_that_describe_a_release_stay_and_cover_it(tmp_path: Path) -> None:
    before = stored_values()
    found = onboarded(table(tmp_path / "gemm.csv", 1.0), release="vllm=0.33")
    (group,) = found.onboarding.groups
    assert group.verdict == "as stored"
    assert stored_values() == before
    record = calibration_record("vllm")
    (entry,) = [
        one for one in record.operation if (one.chip, one.operation_class, one.dtype) == ("h100-sxm", "gemm", "bf16")
    ]
    assert (entry.stack_version, entry.oldest_version) == ("0.33", "0.24.0")
    place = record.operation.index(entry)
    source = record.source_of(f"operation.{place}.rows")
    assert source is not None
    assert "--release vllm=0.33 gemm.csv" in source.text
    assert found.worse == ()


def test_an_exchange_of_experts_is_its_stacks_own(tmp_path: Path) -> None:
    """As `fitting.write.stack_file` has it: the library's collectives are of all stacks, exchanges are not."""
    names_of = "chip,stack,stack_version,method,phase,num_chips,num_nodes,d_model,tokens,top_k,num_experts"
    rows = [
        f"h100-sxm,vllm,0.99,low_latency,dispatch,8,1,{d},{t},8,256,1.0,24,{6e-5 + t * d * 8e-11}"
        for d in (4096, 7168)
        for t in (1, 8, 32, 128)
    ]
    (tmp_path / "exchange.csv").write_text("\n".join([f"{names_of},element_bytes,cores,seconds", *rows]) + "\n")
    found = onboarded(str(tmp_path / "exchange.csv"), release="vllm=0.99")
    (group,) = found.onboarding.groups
    assert group.op_class == "dispatch_low_latency"
    assert set(found.onboarding.texts) == {"vllm"}
    assert (group.verdict, group.dtype) == ("replaced", "8")


def test_what_got_worse_is_said(tmp_path: Path) -> None:
    found = onboarded(table(tmp_path / "gemm.csv", 1.0, noise=0.4), release="vllm=0.33")
    assert len(found.worse) == 1
    assert found.worse[0].startswith("h100-sxm vllm gemm bf16: ")


def test_measured_servings_are_predicted_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rackline.cli.main import run

    slow, cases = table(tmp_path / "gemm.csv", 3.0), tmp_path / "cases.jsonl"
    rows = [json.loads(line) for line in (PAGES / "servings.jsonl").read_text().splitlines()]
    cases.write_text("".join(json.dumps({**row, "stack_version": "0.33"}) + "\n" for row in rows))
    words = ["calibrate", "--release", "vllm=0.33", slow, "--cases", str(cases)]
    assert run([*words, "--processes", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [group["verdict"] for group in found["groups"]] == ["replaced"]
    metrics = {name: (before, after) for name, _, before, _, after, _ in found["rescored"]["changes"]}
    assert metrics["tpot_s"][1] > 2 * metrics["tpot_s"][0]
    assert any(line.startswith("tpot_s: median") for line in found["worse"])


def test_servings_of_older_versions_keep_their_numbers(tmp_path: Path) -> None:
    found = onboarded(table(tmp_path / "gemm.csv", 3.0), release="vllm=0.33", cases=[str(PAGES / "servings.jsonl")])
    assert found.rescored is not None
    assert found.rescored.changes
    for _, cases, median, p90, median_after, p90_after in found.rescored.changes:
        assert (cases, median_after, p90_after) == (3, pytest.approx(median), pytest.approx(p90))
    assert found.worse == ()


def test_a_chip_of_a_file_gets_a_name_and_numbers(tmp_path: Path, catalogue: Path) -> None:
    file = tmp_path / "my-h100.toml"
    text = folder("chips").joinpath("h100-sxm.toml").read_text(encoding="utf-8")
    file.write_text(text.replace('name = "h100-sxm"', 'name = "my-h100"', 1).replace("aliases", "# aliases", 1))
    measured = Path(table(tmp_path / "gemm.csv", 1.3))
    measured.write_text(measured.read_text().replace("h100-sxm,", "my-h100,"))
    found = onboarded(str(measured), chip=str(file))
    assert [group.verdict for group in found.onboarding.groups] == ["new"]
    assert sorted(found.files) == [str(catalogue / "calibrations/vllm.toml"), str(catalogue / "chips/my-h100.toml")]
    assert "my-h100" in names("chips")
    numbers = calibration("vllm", chip("my-h100")).operations["gemm", "bf16"]
    assert numbers.evidence == "measured"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"release": "vllm=0.34"}, "vllm=0.33"),
        ({"release": "vllm"}, "a stack and its version"),
        ({"release": "wllm=0.33"}, "vllm"),
        ({"chip": "b200"}, "what the tables measure: h100-sxm"),
        ({"release": "vllm=0.33", "output": "x.toml"}, "numbers go to the catalogue"),
        ({"release": "vllm=0.33", "cases": ["missing.jsonl"]}, "missing.jsonl"),
        ({"catalogue": "project"}, "`release` or `chip`"),
    ],
)
def test_what_cannot_be_onboarded_is_refused(tmp_path: Path, asked: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as refused:
        onboarded(table(tmp_path / "gemm.csv"), **asked)
    assert said in str(refused.value)
    assert not (tmp_path / "catalogue").exists()


def test_the_user_s_file_comes_before_the_shipped_one(catalogue: Path) -> None:
    shipped, hashed = calibration_record("vllm"), build_hash()
    (catalogue / "calibrations").mkdir(parents=True)
    text = folder("calibrations").joinpath("vllm.toml").read_text(encoding="utf-8")
    (catalogue / "calibrations" / "vllm.toml").write_text(text.replace("vLLM, fitted", "mine", 1))
    (catalogue / "calibrations" / "bad.toml").write_text('name = "bad"\nrows = 1\n')
    forget()
    assert (shipped.full_name, calibration_record("vllm").full_name) == ("vLLM, fitted", "mine")
    assert "bad" in names("calibrations")
    with pytest.raises(CatalogError, match=r"catalogue/calibrations/bad\.toml"):
        calibration_record("bad")
    build_hash.cache_clear()
    assert build_hash() != hashed
    shutil.rmtree(catalogue)
    build_hash.cache_clear()


def test_the_list_of_what_ships_is_the_catalogue() -> None:
    listed = ships()
    assert sorted(listed["fitted"] + listed["by_hand"]) == list(names("calibrations"))
    for name in names("calibrations"):
        text = folder("calibrations").joinpath(f"{name}.toml").read_text(encoding="utf-8")
        assert text.startswith("# Written by `rackline calibrate`") == (name in listed["fitted"]), name
    fitted = {entry.operation_class for name in listed["fitted"] for entry in calibration_record(name).operation}
    assert set(listed["held"]) - {"collective"} <= fitted


def test_a_folder_gets_what_ships_and_nothing_else(tmp_path: Path) -> None:
    own, newer = table(tmp_path / "gemm.csv"), (PAGES / "products.csv")
    other = tmp_path / "other.csv"
    other.write_text(Path(own).read_text().replace(",vllm,", ",another,"))
    out = tmp_path / "out"
    out.mkdir()
    calibrate([own, str(newer), str(other)], output=str(out), processes=1)
    assert sorted(path.name for path in out.iterdir()) == ["generic.toml", "vllm.toml"]
    entries = tomllib.loads((out / "vllm.toml").read_text())["operation"]
    assert {(entry["dtype"], entry["stack_version"]) for entry in entries} == {("bf16", "0.33")}

"""The JSON of every command's answer follows the published schema of answers, with no key that it does not name."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from shlex import split
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

import rackline as rl
from helpers import VISION_CONFIG, call_json
from hostile_server import hostile_server
from rackline.api.verbs import entries
from rackline.cli.main import run
from rackline.validation.cases import published

CASES = published()
PLAN = "plan llama-3.1-8b --on l40s-8 --chips 2 --input 1k --output 50 --layout tp=1"
EXPERTS = "plan deepseek-v3 --on gb200-nvl72 --chips 32 --input 1k --output 100 --layout attention_dp=16,ep=16"
SERVER = "simulate llama-3.1-8b --on dgx-h100 --chips 1 --requests 60 --input 1k --output 50"
COMMANDS = (
    PLAN,
    "simulate llama-3.1-8b --on dgx-h100 --chips 4 --load burst --load-time 5min --rate 9 --autoscale keda",
    "afford llama-3.1-8b --on l40s-8 --budget 5k --input 1k --output 50 --layout tp=1 --peak-over-mean 1.5",
    "rl llama-3.1-8b --on dgx-h100 --chips 8 --prompts 64 --generations 16 --output 1k --longest 4k",
    f"{PLAN} --ttft 1ms",
    f"{PLAN} --traffic 1M --speculate usual --launch",
    "plan llama-3.1-8b --on dgx-h200 --chips 2 --prefill-on h100-96 --input 1k --output 50 --layout tp=1",
    f"{PLAN} --what-if hbm_bandwidth=1TB/s:2TB/s:2",
    f"{EXPERTS} --attention-ffn",
    "train llama-3.1-8b --on dgx-h100 --chips 8 --tokens 1B --global-batch 64k --layout tp=8",
    "train llama-3.1-405b --on dgx-h100 --chips 8 --tokens 1B --global-batch 64k --layout tp=8",
    f"{SERVER} --rate 5",
    f"{SERVER} --rate 8 --high-priority-share 20% --policy priority --slo ttft=2s",
    f"{SERVER} --users 8 --slo ttft=2s,tpot=50ms@p99 --compare policy=prefill-first",
    f"{SERVER} --rate 1 --capacity ttft=1s,tpot=30ms@p90",
    f"{SERVER} --rate 1 --capacity ttft=1us",
    "simulate mixtral-8x7b --on dgx-h100 --layout attention_dp=8,ep=8 --rate 500 --requests 100 --input 1k --output 50",
    "explain llama-3.1-8b --on dgx-h100 --batch 8 --context 1k --layout tp=8",
    "explain deepseek-v3 --on gb200-nvl72 --batch 512 --context 4k --layout attention_dp=8,ep=8 --calibration unit",
    "fit llama-3.1-8b --on l40s-8 --context 8k",
    "fit deepseek-v3 --on l40s-8 --context 8k",
    "tiers llama-3.1-8b --on dgx-h100 --layout tp=1",
    "price llama-3.1-8b --on dgx-h100 --precision fp8 --layout tp=1 --calibration vllm --contexts 8k",
    "infer-prices deepseek-v3",
    "infer-prices gemini-3.1-pro",
    "budget --quality-of 70b@15T --traffic 50M --months 2 --rl 10T --moe 32",
    "budget --loss 1.95 --traffic 1M --unique-tokens 20B",
    "budget --runs",
    "audit result.json --form vllm --chip h100-sxm --num-chips 1",
    "diagnose observed.jsonl",
    "validate CASES",
    "validate some.jsonl --stored stored.json --strict",
    "validate two.jsonl --refit chip",
    "validate two.jsonl --ablation",
    "validate runs.jsonl --refit source",
    "validate runs.jsonl --write-stacks .",
    "validate --import vllm result.json --chip h100-sxm --num-chips 2 --layout tp=2",
    "calibrate gemm.csv --processes 1",
    "calibrate --from observed.jsonl",
    "observe URL --rate inf --requests 3 --input 1 --output 4 --yes",
    "observe URL --rate inf --requests 2 --input 8 --output 4 --yes",
    "lecture --segment 6",
    "lecture --claim Q4",
    "lab experts --quick",
    "encode vision --on dgx-h100 --image-size 512x512 --images 2 --prompt 50",
    "sweep --new my-space.toml",
    "sweep space.toml --dry-run",
    "sweep space.toml --out results",
    "sweep space.toml --search",
    "sweep-show results",
    "sweep-show results --sql 'SELECT batch, server_s FROM sweep'",
    "new chip my-chip --like h100",
    "chips",
    "chips h100",
    "chips --ridge",
    "clusters",
    "clusters gb200-nvl72",
    "models",
    "models deepseek-v3",
    "models --kv --on h200",
    "memory",
    "memory nvme-gen5",
    "compare h100 b200 mi355x",
    "compare llama-3.1-8b qwen3-8b",
    "compare llama-3.1-8b@l40s-8 llama-3.1-8b@dgx-h100 --input 1k --output 50 --engine vllm --chips 1",
    "compare llama-3.1-8b@l40s-8 --engine vllm,sglang --now tp=1,batch=32 --input 1k --output 50",
    "ask questions.toml",
    "schema plan",
    "schema --answers",
)
GEMM = "chip,stack,stack_version,kernel,dtype,m,n,k,seconds"
SPACE = """
[options]
model = "llama-3.1-8b"
on = "l40s-8"
layout = ["tp=1", "tp=2"]
batch = [1, 2, 4, 8]
context = [1000, 2000, 4000]
[objectives]
usd_per_mtok_output = "min"
server_s = "min"
"""
VLLM = {
    "backend": "vllm",
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 200,
    "max_concurrency": 16,
    "duration": 100.0,
    "completed": 200,
    "failed": 0,
    "total_input_tokens": 204800,
    "total_output_tokens": 25600,
    "mean_ttft_ms": 81.5,
    "mean_tpot_ms": 7.25,
}


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    return rl.schema(answers=True).result


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the commands read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.jsonl").write_text('{"id": "x", "kind": "serve"}\n' + CASES.read_text().splitlines()[0] + "\n")
    lines = CASES.read_text().splitlines(keepends=True)
    serve, train = ([line for line in lines if f'"kind": "{kind}"' in line] for kind in ("serve", "train"))
    (tmp_path / "two.jsonl").write_text("".join(serve[:2]))
    (tmp_path / "runs.jsonl").write_text("".join(train[:8]))
    (tmp_path / "result.json").write_text(json.dumps(VLLM))
    (tmp_path / "questions.toml").write_text(
        '[[questions]]\nask = "chips"\nname = ["h100", "h100x"]\n[[questions]]\nask = "memory"\n'
    )
    (tmp_path / "space.toml").write_text(SPACE)
    shapes = [(m, n) for m in (1, 64, 512) for n in (1024, 8192)]
    rows = [f"h100-sxm,vllm,0.9,a,bfloat16,{m},{n},4096,{m * n * 8e-12 + 4e-6}" for m, n in shapes]
    (tmp_path / "vision").mkdir()
    (tmp_path / "vision" / "config.json").write_text(json.dumps(VISION_CONFIG))
    seen = [
        {"arrival_s": at, "outcome": "finished", "input_len": 200, "output_len": 3, "sent_s": at,
         "token_s": [at + 0.05, at + 0.06, at + 0.07]}
        for at in range(8)
    ]  # fmt: skip
    run_seen = {"id": "a", "kind": "observed", "model": "llama-3.1-8b", "chip": "h100-sxm", "requests": seen}
    (tmp_path / "observed.jsonl").write_text(json.dumps(run_seen) + "\n")
    (tmp_path / "gemm.csv").write_text("\n".join([GEMM, *rows]) + "\n")
    return tmp_path


def validator(schemas: dict[str, Any], name: str) -> Draft202012Validator:
    """Of the answers to one question."""
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schemas["$defs"]})


def test_it_is_a_json_schema_of_every_question(schemas: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(schemas)
    assert [one["$ref"] for one in schemas["oneOf"]] == [f"#/$defs/{name}" for name in entries()]
    elsewhere = {"measure"}  # tests/lab/test_measure.py, which measures once for all its tests
    assert {split(command)[0] for command in COMMANDS} == set(entries()) - elsewhere


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_answers_follow_it(
    command: str, schemas: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "stored.json" in command:
        run(["validate", str(CASES), "--write-stored", "stored.json"])
        capsys.readouterr()
    if "sweep-show" in command:
        run(["sweep", "space.toml", "--out", "results"])
        capsys.readouterr()
    with hostile_server() as server:
        words = [{"CASES": str(CASES), "URL": server.url}.get(word, word) for word in split(command)]
        run([*words, "--json"])
    answer = json.loads(capsys.readouterr().out)
    validator(schemas, words[0]).validate(answer)
    for asked in answer["answers"] if words[0] == "ask" else ():
        if "answer" in asked:
            whole = {**asked["answer"], "question": asked["question"]}
            validator(schemas, asked["question"]["ask"]).validate(whole)


@pytest.mark.parametrize("command", ["fit llama-3.1-8b --on l40s-8", "chips --ridge", "lecture --claim C99"])
def test_no_key_may_be_unknown_or_missing(
    command: str, schemas: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = split(command)
    answer = call_json(capsys, *words)
    checked = validator(schemas, words[0])
    checked.validate(answer)
    for place, holder in enumerate(_objects(answer)):
        if place == 0 or not holder:
            continue
        changed = copy.deepcopy(answer)
        list(_objects(changed))[place]["not_in_the_schema"] = 1
        if holder.keys() & {"name", "label", "layout", "verdict", "chip"}:
            with pytest.raises(ValidationError):
                checked.validate(changed)
    for name in answer.keys() - {
        "model_origins",
        "warnings",
        "media",
        "adapter",
        "defaults",
    }:  # only where there are any
        with pytest.raises(ValidationError):
            checked.validate({key: value for key, value in answer.items() if key != name})
    with pytest.raises(ValidationError):
        checked.validate({**answer, "not_in_the_schema": 1})


def _objects(value: Any) -> list[dict[str, Any]]:
    """All objects inside, the outermost first."""
    if isinstance(value, list):
        return [found for one in value for found in _objects(one)]
    if not isinstance(value, dict):
        return []
    return [value, *(found for one in value.values() for found in _objects(one))]


def test_the_schema_describes_fields_with_their_units(schemas: dict[str, Any]) -> None:
    candidate = schemas["$defs"]["Candidate"]["properties"]
    assert candidate["tpot_s"]["unit"] == "s"
    assert candidate["free_bytes"]["description"].startswith("free memory on the fullest chip")

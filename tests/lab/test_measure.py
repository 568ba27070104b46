"""`measure` from end to end with a small model: structure, bounds and use of the file; no time is judged."""

from __future__ import annotations

import importlib
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from rackline.catalog import calibration_record
from rackline.cli.main import run
from rackline.errors import CatalogError, InputError
from rackline.hardware import chip_record, cluster, cluster_record
from rackline.lab.experiment import start_jax
from rackline.lab.workers.worker import Clock
from rackline.parallel import Layout
from rackline.passes import calibration_on
from rackline.serving.stack import stack as find_stack, stack_of

pytest.importorskip("jax")
start_jax()  # before any test imports JAX by itself


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The file of this machine, and what the command said of it."""
    import rackline as rl

    file = tmp_path_factory.mktemp("measured") / "here.toml"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rackline.lab.measured.MEANINGLESS", np.inf)  # refused on a busy machine otherwise
        answer = rl.measure(quick=True, max_time=2.0, output=str(file))
    return file, answer.to_dict()


@pytest.mark.slow
def test_the_answer_follows_its_schema(measured: tuple[Path, dict[str, Any]]) -> None:
    import rackline as rl

    schemas = rl.schema(answers=True).result
    Draft202012Validator({"$ref": "#/$defs/measure", "$defs": schemas["$defs"]}).validate(measured[1])


@pytest.mark.slow
def test_what_was_not_fitted_is_judged(measured: tuple[Path, dict[str, Any]]) -> None:
    data = measured[1]
    assert set(data["held_out"]) == {"decode", "prefill", "mixed", "served", "saturation"}
    for kind, one in data["held_out"].items():
        unseen = [row for row in data["rows"] if row["kind"] == kind and not row["is_fitted"]]
        assert one["n"] == len(unseen) > 0
        assert 0 <= one["median_abs_error"] <= one["p90_abs_error"]
    seen = [(row["sequences"], row["context_len"], row["prompt_tokens"]) for row in data["rows"] if row["is_fitted"]]
    assert data["fitted"]["n"] == len(seen) == len(set(seen))
    others = {
        (row["sequences"], row["context_len"], row["prompt_tokens"])
        for row in data["rows"]
        if not row["is_fitted"] and row["kind"] != "served"
    }
    assert not others & set(seen)
    assert all(row["measured_s"] > 0 and row["predicted_s"] > 0 for row in data["rows"])


@pytest.mark.slow
def test_rates_are_positive_and_have_a_footprint(measured: tuple[Path, dict[str, Any]]) -> None:
    rates = measured[1]["rates"]
    assert {"read", "copy", "first touch (host)", "launch", "product"} <= {rate["name"] for rate in rates}
    assert {rate["dtype"] for rate in rates if rate["name"] == "product"} == {"fp32", "bf16"}
    assert all(rate["value"] > 0 for rate in rates)


@pytest.mark.slow
def test_the_file_holds_a_chip_a_cluster_a_calibration_and_a_stack(measured: tuple[Path, dict[str, Any]]) -> None:
    file = str(measured[0])
    chip, machine, numbers, stack = (
        read(file) for read in (chip_record, cluster_record, calibration_record, find_stack)
    )
    assert chip.name == machine.name
    assert machine.chip == machine.calibration == numbers.serving == "here.toml"
    assert {one.operation_class for one in numbers.operation} >= {"gemm", "attention_decode", "attention_prefill"}
    assert all(one.eta_memory <= 1 and one.eta_compute <= 1 for one in numbers.operation)
    assert stack.scheduler.admission == "prefill_first"
    found = cluster(file)
    assert calibration_on(found).name == numbers.name
    assert stack_of(calibration_on(found)).name == stack.name


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["explain", "qwen3-0.6b", "--batch", "2", "--context", "256"],
        ["plan", "qwen3-0.6b", "--input", "64", "--output", "16", "--tpot", "1000s", "--ttft", "10000s"],
        ["simulate", "qwen3-0.6b", "--rate", "0.001", "--requests", "5", "--input", "32", "--output", "4"],
    ],
    ids=lambda command: command[0],
)
def test_commands_take_the_file(
    measured: tuple[Path, dict[str, Any]], command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--on", str(measured[0]), "--precision", "fp32", "--json"]) == 0
    assert "jax-here" in capsys.readouterr().out


@pytest.mark.slow
def test_predictions_are_those_of_the_file(measured: tuple[Path, dict[str, Any]]) -> None:
    from rackline.lab.engine import Work
    from rackline.lab.jax_engine import QUICK_SHAPE
    from rackline.lab.measured import resolved

    file, data = measured
    engine: Any = SimpleNamespace(shape=QUICK_SHAPE, dtype="fp32")
    deployment = resolved(file.read_text(encoding="utf-8"), engine).deployment(Layout())
    row = next(row for row in data["rows"] if row["kind"] == "mixed")
    work = Work(
        sequences=int(row["sequences"]), context_len=int(row["context_len"]), prompt_tokens=int(row["prompt_tokens"])
    )
    assert float(deployment.table().seconds(work.batch())[0]) == pytest.approx(row["predicted_s"])


def test_passes_of_the_engine_are_those_of_the_transformer() -> None:
    """Prompts, then tokens beside another prompt, which is padded: the same tokens as without a cache."""
    import jax
    import jax.numpy as jnp

    from rackline.lab.jax_engine import BLOCK, one_pass, turned
    from rackline.lab.transformer import Shape, init, logits

    shape = Shape(num_layers=2, d_model=32, num_q_heads=4, num_kv_heads=2, head_dim=8, d_ff=64, vocab_size=64)
    params = init(jax.random.key(0), shape)
    texts = [np.array(jax.random.randint(jax.random.key(7 + n), (5 + n,), 0, 64), dtype=np.int32) for n in range(2)]
    none = np.zeros(0, dtype=np.int32)
    empty = [jnp.zeros((2, 2, 2 * BLOCK, 8)) for _ in range(2)]
    run = jax.jit(partial(one_pass, shape=shape))
    first, cache = run(turned(params), (empty, list(empty)), none, none, texts[0], 0, 4)
    newest, lengths = np.array(first), np.array([5], dtype=np.int32)
    both, cache = run(turned(params), cache, newest, lengths, np.append(texts[1], [7, 7]).astype(np.int32), 1, 5)
    whole = np.concatenate([texts[0], newest])
    plain = jax.jit(partial(logits, shape=shape))

    def next_token(text: Any) -> int:
        """What follows a text; what stands behind it changes nothing."""
        longer = np.pad(text, (0, BLOCK // 4 - len(text)))
        return int(jnp.argmax(plain(params, longer)[len(text) - 1]))

    wanted = [next_token(text) for text in (texts[0], whole, texts[1])]
    assert [int(first[0]), *both.tolist()] == wanted
    again, _ = run(turned(params), cache, both, np.array([6, 6], dtype=np.int32), none, 0, 0)
    texts = [np.concatenate([whole, both[:1]]), np.concatenate([texts[1], both[1:]])]
    assert again.tolist() == [next_token(text) for text in texts]


@pytest.mark.parametrize("block", [64, pytest.param(128, marks=pytest.mark.nightly)])
def test_passes_in_bf16_agree_with_those_in_fp32(block: int) -> None:
    """A prompt, then a token beside another prompt; what the first layer puts out goes into the cache of the second."""
    import jax
    import jax.numpy as jnp

    from rackline.lab.jax_engine import one_pass, turned
    from rackline.lab.transformer import Shape, init

    shape = Shape(num_layers=2, d_model=32, num_q_heads=4, num_kv_heads=2, head_dim=8, d_ff=64, vocab_size=64)
    params = init(jax.random.key(0), shape)
    run = jax.jit(partial(one_pass, shape=shape, block=block))
    text, none = np.arange(6, dtype=np.int32), np.zeros(0, dtype=np.int32)
    keys: dict[str, Any] = {}
    for dtype in (jnp.float32, jnp.bfloat16):
        weights = turned(jax.tree.map(lambda leaf, dtype=dtype: leaf.astype(dtype), params))
        empty = [jnp.zeros((2, 2, 128, 8), dtype=dtype) for _ in range(2)]
        first, cache = run(weights, (empty, list(empty)), none, none, text, 0, 5)
        _, cache = run(weights, cache, np.array(first), np.array([6], dtype=np.int32), text[::-1].copy(), 1, 5)
        assert all(one.dtype == dtype for side in cache for one in side)
        keys[str(jnp.dtype(dtype))] = cache[0][1][:, :, :6].astype(jnp.float32)
    assert float(jnp.max(jnp.abs(keys["float32"] - keys["bfloat16"]))) < 0.1 * float(jnp.max(jnp.abs(keys["float32"])))


def test_products_of_a_gpu_are_large_enough_for_its_peak() -> None:
    from rackline.lab.rates import measured_rates, processor

    small = measured_rates(replace(processor(), kind="gpu"), 1, Clock(cpu=False), small=True)
    sizes = {(rate.rows, rate.inputs, rate.outputs) for rate in small if rate.name == "product"}
    assert sizes == {(1, 1024, 1024), (16, 1024, 1024)}  # an eighth of each side


def test_a_machine_file_names_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    file.write_text("[chip]\nname = 'a'\n[clutser]\n", encoding="utf-8")
    with pytest.raises(CatalogError, match=r"clutser.*nearest: cluster"):
        chip_record(str(file))
    file.write_text("[chip]\nname = 'a'\n", encoding="utf-8")
    with pytest.raises(CatalogError, match=r"a machine with chip.*\[cluster\]"):
        cluster_record(str(file))


def judged(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    """Measure a machine whose passes take these times, up to their judgement."""
    from rackline.lab.engine import Limits, MeasureSetup
    from rackline.lab.measured import measure_machine
    from rackline.lab.rates import Repeated

    place = "rackline.lab.measured"
    monkeypatch.setattr(f"{place}.measured_rates", _no_rates)
    monkeypatch.setattr(
        f"{place}.timed", lambda engine, works, repeats, within_s: dict.fromkeys(works, Repeated(seconds=seconds))
    )
    limits = Limits(sequences=2, context_len=128, prompt_tokens=64)
    engine = SimpleNamespace(limits=limits, prepare=lambda works: None, close=lambda: None)
    monkeypatch.setattr(f"{place}.start_engine", lambda setup: engine)

    def fit(*given: object) -> None:
        raise InputError(what="the fit", given="these times", allowed="-")

    monkeypatch.setattr(f"{place}.fit_of", fit)
    monkeypatch.setattr(f"{place}.deployment_on", lambda *given: None)
    measure_machine(MeasureSetup(quick=True))


def test_only_what_says_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"known to 250% after 20 s.*--max-time"):
        judged(monkeypatch, 1.0, 1.0, 1.0, 6.0, 1.0, 1.0)
    for spread in (0.13, 0.5, 1.0):  # busy, and used
        with pytest.raises(InputError, match="the fit"):
            judged(monkeypatch, *(1.0, 1.0 + spread) * 6)


def test_repeats_go_on_until_they_agree_or_time_is_up() -> None:
    """On a machine whose timings spread by 13 %, as a quiet virtual one with two cores: no wall clock is read."""
    from rackline.lab.rates import AGREED, in_turns, uncertainty

    def run_for(within_s: float, spread: float) -> tuple[int, float, float]:
        draws, clock = np.random.default_rng(7), [0.0]

        def call() -> float:
            took = 0.01 * float(np.exp(spread / 1.35 * draws.standard_normal()))
            clock[0] += took
            return took

        def pause(seconds: float) -> None:
            clock[0] += seconds

        calls = dict.fromkeys("abcd", call)
        found = in_turns(calls, 7, agreed_within_s=within_s, now=lambda: clock[0], pause=pause)
        return len(found["a"].seconds), uncertainty(found.values()), clock[0]

    few, unsure, _ = run_for(0.0, 0.13)
    assert few == 7
    assert unsure > AGREED
    number, known, took = run_for(300.0, 0.13)
    assert 7 < number < 100
    assert known <= AGREED
    assert took < 10.0
    number, unsure, took = run_for(2.0, 3.0)  # hopeless: it stops within a round of the time
    assert unsure > AGREED
    assert 2.0 <= took < 5.0
    assert run_for(300.0, 0.01)[0] == 7  # a quiet machine measures no longer than before


def test_the_interval_of_a_median_holds_it() -> None:
    """In 94 to 100 % of samples of any size and shape, by the order of the repeats."""
    from rackline.lab.rates import Repeated

    draws = np.random.default_rng(1)
    for number in (6, 9, 20, 70, 71, 2000):
        samples = np.exp(draws.standard_normal((400, number))) + 0.2  # its median is 1.2
        ends = [Repeated(seconds=tuple(map(float, sample))).interval for sample in samples]
        held = float(np.mean([low <= 1.2 <= high for low, high in ends]))
        assert 0.92 <= held <= 1.0, number
    assert Repeated(seconds=(1.0, 3.0, 2.0)).interval == (1.0, 3.0)
    assert Repeated(seconds=tuple(map(float, range(1, 10)))).interval == (2.0, 8.0)


def test_a_pass_that_takes_no_time_is_refused() -> None:
    from rackline.lab.rates import in_turns

    with pytest.raises(InputError, match="a clock that tells passes from nothing"):
        in_turns({"a": lambda: 0.0}, 3)


def _no_rates(device: Any, repeats: int, clock: Any, *, small: bool) -> Any:
    from rackline.lab.rates import Rate

    return (
        Rate(name="read", dtype="fp32", unit="bytes/s", value=1e10, spread=0.0),
        Rate(name="product", dtype="fp32", unit="FLOP/s", value=1e11, spread=0.0),
        Rate(name="launch", dtype="fp32", unit="s", value=1e-5, spread=0.0),
    )


def test_a_fit_finds_the_numbers_that_made_its_passes() -> None:
    from rackline.lab.engine import Limits, batch_of
    from rackline.lab.fitted import calibration_of, fitted, fitted_works, held_out_works, starts
    from rackline.lab.rates import processor
    from rackline.lab.transformer import Shape, deployment_of

    assert processor().cores >= 1
    shape = Shape(num_layers=3, d_model=1024, num_q_heads=16, num_kv_heads=4, head_dim=64, d_ff=2816, vocab_size=8192)
    table = _scaled(deployment_of(shape).table())
    shares = {"product_compute": 0.9, "product_memory": 0.5, "cache_memory": 0.15, "prompt_compute": 0.3}
    true = {**{one.name: one.start for one in starts(1e-5)}, **shares, "token_memory": 0.1}
    limits = Limits(sequences=16, context_len=1024, prompt_tokens=256)
    works, unseen = fitted_works(limits), held_out_works(limits, 0)
    assert unseen == held_out_works(limits, 0) != held_out_works(limits, 1)
    assert not set(unseen) & set(works)
    assert len(set(unseen)) == len(unseen)
    made = table.with_calibration(calibration_of(true, "made", "made"))
    fit = fitted(table, works, list(made.seconds(batch_of(list(works)))), 1e-5, "made")
    found = table.with_calibration(fit.calibration).seconds(batch_of(list(unseen)))
    assert np.max(np.abs(found / made.seconds(batch_of(list(unseen))) - 1.0)) < 0.25
    assert fit.determined["product_memory"] > fit.determined["context_s"]


def _scaled(table: Any) -> Any:
    """The same table on a chip with peaks like those of a processor."""
    from dataclasses import replace

    chip = replace(table.chip, peak_flop_per_s={"fp32": 1e11, "bf16": 1e11}, hbm_bytes_per_s=2e10)
    return replace(table, chip=chip)


@pytest.mark.slow
def test_the_file_is_toml(measured: tuple[Path, dict[str, Any]]) -> None:
    data = tomllib.loads(measured[0].read_text(encoding="utf-8"))
    assert set(data) == {"chip", "cluster", "calibration", "stack", "measured"}
    assert data["measured"]["versions"]["jax"]


def test_contexts_are_read_in_blocks() -> None:
    from rackline.passes import Batch

    contexts = np.array([0.0, 64.0, 255.0, 256.0, 1000.0])
    read = Batch(decode_sequences=1.0, context_len=contexts).in_blocks(256).context_len
    assert np.asarray(read).tolist() == [256.0, 256.0, 256.0, 512.0, 1024.0]
    assert Batch(context_len=64.0).in_blocks(1).context_len == 64.0


def test_the_simulator_reads_half_a_block_more() -> None:
    from dataclasses import replace

    from rackline.lab.fitted import calibration_of, starts
    from rackline.lab.transformer import Shape, deployment_of
    from rackline.simulation import TableClock

    numbers = calibration_of({one.name: one.start for one in starts(1e-5)}, "made", "made")
    plain = replace(deployment_of(Shape()), calibration=numbers)
    blocks = replace(plain, calibration=replace(numbers, context_block=64))
    at = np.array([100.0, 300.0])
    longer, shorter = (
        TableClock.of(plain).steps(at + 32.0, np.zeros(1), 2.0),
        TableClock.of(blocks).steps(at, np.zeros(1), 2.0),
    )
    assert shorter == pytest.approx(longer)


def test_an_engine_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = ["-o", str(tmp_path / "m.toml")]
    assert run(["measure", "--engine", "llama.cpp", *out]) == 2
    assert "pip install llama-cpp-python" in " ".join(capsys.readouterr().err.split())
    assert run(["measure", "--engine", "lama.cpp", *out]) == 2
    assert "nearest: llama.cpp" in " ".join(capsys.readouterr().err.split())
    assert run(["measure", "--engine", "sglang", *out]) == 2
    assert "rackline observe" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "m.toml").exists()


_WORKER = """
import sys
sys.path.insert(0, {folder!r})
from worker import Clock, answer_commands

class Made:
    versions = {{"made": "1"}}
    def __init__(self, config):
        self.clock = Clock(cpu=True)
        print("on standard output, which is not for answers")
    def seconds(self, sequences, context_len, prompt_tokens):
        if prompt_tokens == 13:
            raise ValueError("thirteen")
        return sequences + context_len / 1000.0
    def serve(self, arrival_s, input_len, output_len):
        began = self.clock.now()
        self.clock.wait_until(began + 1000.0)
        return {{"ttft_s": [self.clock.now() - began] * len(arrival_s), "e2e_s": [float(n) for n in output_len]}}

answer_commands(Made)
"""


def test_an_engine_in_a_process_of_its_own(tmp_path: Path) -> None:
    import sys

    import rackline.lab.workers.worker as worker
    from rackline.lab.engine import Limits, ProcessEngine, Scheduler, Work
    from rackline.lab.transformer import Shape
    from rackline.simulation import Requests

    script = tmp_path / "made.py"
    script.write_text(_WORKER.format(folder=str(Path(worker.__file__).parent)), encoding="utf-8")
    engine = ProcessEngine(
        name="made",
        dtype="fp32",
        shape=Shape(),
        limits=Limits(sequences=1, context_len=1, prompt_tokens=1),
        scheduler=Scheduler(admission="chunked", max_num_seqs=1, max_batched_tokens=1, prompt_tokens=1),
        context_block=1,
    )
    try:
        engine.start(sys.executable, str(script), {})
        assert engine.versions == {"made": "1"}
        assert engine.seconds(Work(sequences=2, context_len=500)) == 2.5
        requests = Requests(arrival_s=np.zeros(2), input_len=np.ones(2, dtype=int), output_len=np.array([3, 4]))
        served = engine.serve(requests)
        assert served.e2e_s.tolist() == [3.0, 4.0]
        assert 1000.0 <= served.ttft_s[0] < 1010.0
        with pytest.raises(InputError, match="thirteen"):
            engine.seconds(Work(prompt_tokens=13))
    finally:
        engine.close()
    with pytest.raises(InputError, match=r"not started|ended"):
        engine.seconds(Work(sequences=1))


def test_timings_are_taken_in_turns() -> None:
    from rackline.lab.rates import in_turns

    order: list[str] = []

    def call(name: str) -> float:
        order.append(name)
        return float(len(order))

    calls = {name: partial(call, name) for name in "ab"}
    assert in_turns(calls, 2)["a"].seconds == (1.0, 3.0)
    order.clear()
    found = in_turns(calls, 4, in_a_row=2)
    assert "".join(order) == "aabbaabb"
    assert found["b"].seconds == (3.0, 4.0, 7.0, 8.0)


def test_passes_that_are_not_fitted_stay_inside_of_those_that_are() -> None:
    from rackline.lab.engine import Limits
    from rackline.lab.fitted import fitted_works, held_out_works

    limits = Limits(sequences=16, context_len=1024, prompt_tokens=256)
    fitted = fitted_works(limits)
    for seed in range(20):
        for work in held_out_works(limits, seed):
            assert work.sequences <= max(one.sequences for one in fitted)
            if work.sequences:
                lengths = [one.context_len for one in fitted if one.sequences]
                assert min(lengths) <= work.context_len <= max(lengths)
            if work.prompt_tokens:
                prompts = [one.prompt_tokens for one in fitted if one.prompt_tokens]
                assert min(prompts) <= work.prompt_tokens <= max(prompts)


def test_llama_cpp_serves_prompts_beside_decodes_until_all_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three requests in two slots, four tokens a pass and a second a token, by hand."""
    pytest.importorskip("gguf")
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "src" / "rackline" / "lab" / "workers")
    kind, passes = importlib.import_module("run_llama_cpp").LlamaCpp, list[list[tuple[int, int, bool]]]()

    class Counted(kind):
        def __init__(self) -> None:
            self.s, self.slots, self.served, self.budget, self.lengths = 0.0, 2, 2, 4, [0, 0]
            self.clock = SimpleNamespace(now=lambda: self.s, wait_until=lambda at: setattr(self, "s", at))

        def _decode(self, tokens: list[tuple[int, int, bool]]) -> float:
            passes.append(tokens)
            self.s += len(tokens)
            return float(len(tokens))

        def _cut(self, sequence: int, length: int) -> None:
            self.lengths[sequence] = length

    assert Counted().serve([0.0, 0.0, 100.0], [3, 3, 2], [2, 1, 1]) == {
        "ttft_s": [4.0, 7.0, 2.0],
        "e2e_s": [7.0, 7.0, 2.0],
    }
    assert [[(slot, place) for slot, place, _ in one] for one in passes] == [
        [(0, 0), (0, 1), (0, 2), (1, 0)],
        [(0, 3), (1, 1), (1, 2)],
        [(0, 0), (0, 1)],
    ]


@pytest.mark.parametrize(("asked", "taken"), [(None, "fp32"), ("bf16", "bf16")])
def test_the_own_engine_has_the_type_that_is_asked_for(asked: Any, taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rackline.lab.jax_engine.jax_engine", lambda dtype, seed, **more: dtype)
    from rackline.lab.measured import MeasureSetup, start_engine

    assert start_engine(MeasureSetup(dtype=asked)) == taken

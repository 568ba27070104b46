"""Parts of the lab that need no engine: what is fitted and held out, links, workers with a library that only counts."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rackline.lab import rates
from rackline.lab.engine import Limits, Scheduler, ServedTimes, Work
from rackline.lab.fitted import LOADS, Compared, fitted_works, held_out_works, served
from rackline.lab.rates import Repeated
from rackline.serving.stack import IDEAL
from rackline.simulation import Requests

WORKERS = Path(__file__).resolve().parents[2] / "src" / "rackline" / "lab" / "workers"


def test_the_fitted_passes_are_the_corners_and_three_between() -> None:
    """Of 16 sequences, contexts from 64 to 16 below the longest, prompts to 256."""
    assert fitted_works(Limits(sequences=16, context_len=1024, prompt_tokens=256)) == (
        Work(sequences=1, context_len=64),
        Work(sequences=1, context_len=1008),
        Work(sequences=16, context_len=64),
        Work(sequences=16, context_len=1008),
        Work(sequences=4, context_len=268),  # (64 + 1008) / 4
        Work(prompt_tokens=32),
        Work(prompt_tokens=256),
        Work(sequences=8, context_len=504, prompt_tokens=64),
    )


def test_short_contexts_are_at_most_half_of_the_longest() -> None:
    works = fitted_works(Limits(sequences=1, context_len=100, prompt_tokens=16))
    assert [(one.sequences, one.context_len) for one in works[:5]] == [(1, 50), (1, 84), (1, 50), (1, 84), (1, 33)]
    assert works[-1] == Work(sequences=1, context_len=42, prompt_tokens=4)


@pytest.mark.parametrize(("few", "numbers"), [(False, (16, 4, 4)), (True, (6, 1, 1))])
def test_so_many_passes_of_each_kind_are_held_out(few: bool, numbers: tuple[int, int, int]) -> None:
    limits = Limits(sequences=16, context_len=1024, prompt_tokens=256)
    works = held_out_works(limits, 3, few=few)
    decode = [one for one in works if one.sequences and not one.prompt_tokens]
    prompts = [one for one in works if not one.sequences]
    mixed = [one for one in works if one.sequences and one.prompt_tokens]
    assert (len(decode), len(prompts), len(mixed)) == numbers
    assert len(set(works)) == len(works)
    assert not set(works) & set(fitted_works(limits))
    assert len({one.sequences for one in works if one.sequences}) <= 6  # an engine compiles each batch
    assert works != held_out_works(limits, 4, few=few)


def test_an_engine_serves_three_loads_and_then_all_at_once() -> None:
    """Of an engine that answers each request in its own second."""
    pytest.importorskip("jax", reason="JAX has no wheel on this platform")
    from rackline.lab.transformer import Shape, deployment_of

    asked: list[Requests] = []

    def serve(requests: Requests) -> ServedTimes:
        asked.append(requests)
        seconds = np.arange(1.0, len(requests) + 1.0)
        return ServedTimes(ttft_s=seconds, e2e_s=seconds)

    scheduler = Scheduler(admission="chunked", max_num_seqs=4, max_batched_tokens=64, prompt_tokens=32)
    limits = Limits(sequences=4, context_len=128, prompt_tokens=64)
    engine: Any = SimpleNamespace(scheduler=scheduler, limits=limits, serve=serve)
    rows = served(engine, deployment_of(Shape()), IDEAL, seed=1, trace_s=1e-3, output_len=8)
    *traces, backlog = asked
    assert LOADS == (0.3, 0.6, 0.85)
    assert all(8 <= len(one) <= 60 for one in traces)
    assert (len(backlog), backlog.arrival_s.tolist()) == (3 * 4, [0.0] * 12)
    for one in asked:
        assert set(one.input_len.tolist()) == {32}
        assert one.output_len.min() >= 2
        assert one.output_len.max() < 16
    assert [(row.kind, row.load) for row in rows] == [
        *(("served", load) for load, one in zip(LOADS, traces, strict=True) for _ in range(len(one))),
        ("saturation", rows[-1].load),
    ]
    assert [row.measured_s for row in rows[: len(traces[0])]] == [float(n) for n in range(1, len(traces[0]) + 1)]
    assert (rows[-1].sequences, rows[-1].measured_s) == (4, 1.0)  # 12 requests in 12 s
    assert rows[-1].predicted_s > 0.0
    # the gaps of arrivals are those of the load: at 0.6 half as long as at 0.3
    gaps = [float(np.mean(np.diff(one.arrival_s, prepend=0.0))) for one in traces]
    assert gaps[0] > gaps[2]


class Time:
    """A clock that goes on when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 5.0
        self.slept: list[float] = []

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_a_throttled_copy_takes_bytes_over_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax", reason="JAX has no wheel on this platform")
    from rackline.lab import experts

    clock = Time()
    monkeypatch.setattr(experts, "time", clock)
    experts.throttled_copy([1000.0, 3000.0], 2000.0)
    assert clock.slept == [0.5, 1.5]
    assert clock.now == 7.0

    class Slow(Time):
        def perf_counter(self) -> float:
            self.now += 10.0
            return self.now

    slow = Slow()
    monkeypatch.setattr(experts, "time", slow)
    experts.throttled_copy([1000.0], 2000.0)  # the memory was slower than the link: nothing is waited for
    assert slow.slept == []


def test_each_chip_sends_over_both_of_its_links(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax", reason="JAX has no wheel on this platform")
    from rackline.lab import experts

    sent: list[tuple[list[float], float]] = []
    monkeypatch.setattr(experts, "throttled_copy", lambda messages, rate: sent.append((list(messages), rate)))
    up, across = np.array([[0.0, 5.0], [7.0, 0.0]]), np.array([[0.0, 0.0], [9.0, 0.0]])
    assert experts.links_s(up, across, 100.0, 10.0) >= 0.0
    assert sorted(sent) == [([], 10.0), ([5.0], 100.0), ([7.0], 100.0), ([9.0], 10.0)]


class Library:
    """llama.cpp as far as a worker calls it: keeps what it is told."""

    def __init__(self) -> None:
        self.passes: list[list[tuple[int, int, int, int]]] = []
        self.cut: list[tuple[int, int]] = []
        self.copied: list[tuple[int, int]] = []
        self.context: Any = None
        self.status = 0

    def llama_context_default_params(self) -> Any:
        return SimpleNamespace()

    def llama_init_from_model(self, model: Any, how: Any) -> Any:
        self.context = how
        return how

    def llama_get_memory(self, context: Any) -> str:
        return "memory"

    def llama_batch_init(self, tokens: int, embedding: int, sequences: int) -> Any:
        empty = [0] * tokens
        ids = [[0] for _ in range(tokens)]
        self.room = (tokens, embedding, sequences)
        return SimpleNamespace(n_tokens=0, token=[*empty], pos=[*empty], n_seq_id=[*empty], seq_id=ids, logits=[*empty])

    def llama_decode(self, context: Any, batch: Any) -> int:
        rows = range(batch.n_tokens)
        self.passes.append(
            [(batch.seq_id[at][0], batch.pos[at], batch.token[at], int(batch.logits[at])) for at in rows]
        )
        assert all(batch.n_seq_id[at] == 1 for at in rows)
        return self.status

    def llama_synchronize(self, context: Any) -> None:
        pass

    def llama_memory_seq_rm(self, memory: str, sequence: int, length: int, end: int) -> None:
        assert (memory, end) == ("memory", -1)
        self.cut.append((sequence, length))

    def llama_memory_seq_cp(self, memory: str, source: int, target: int, first: int, last: int) -> None:
        assert (memory, first, last) == ("memory", -1, -1)
        self.copied.append((source, target))


def worker(monkeypatch: pytest.MonkeyPatch, **limits: int) -> tuple[Any, Library]:
    """A worker of llama.cpp that has started, and its library."""
    pytest.importorskip("gguf")
    monkeypatch.syspath_prepend(WORKERS)
    kind = importlib.import_module("run_llama_cpp").LlamaCpp
    found, library = kind.__new__(kind), Library()
    found.api, found.model, found.vocab = library, "model", 100
    found.limits, found.slots = limits, limits["sequences"]
    found.clock = SimpleNamespace(now=lambda: 0.0)
    found._start(3, "fp32")
    return found, library


@pytest.mark.parametrize(
    ("context_len", "cells"),
    [(255, 6 * 256), (256, 6 * 512), (1000, 6 * 1024), (1023, 6 * 1024), (1024, 6 * 1280)],
)
def test_llama_cpp_has_cells_for_every_slot_and_two_more(
    context_len: int, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token more than a context, in whole blocks of 256, for four slots, the spare one and the one of prompts."""
    found, library = worker(monkeypatch, sequences=4, context_len=context_len, prompt_tokens=300)
    how = library.context
    assert (how.n_seq_max, how.n_ctx) == (6, cells)
    assert how.n_batch == how.n_ubatch == 512  # at least
    assert how.n_threads == how.n_threads_batch == 3
    assert how.type_k == how.type_v == 0  # GGML's number of float32
    assert library.room == (512, 0, 1)
    assert (found.spare, found.entry, found.lengths) == (4, 5, [0] * 6)


def test_llama_cpp_has_room_for_a_prompt_and_a_token_of_each_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    _, library = worker(monkeypatch, sequences=4, context_len=2000, prompt_tokens=600)
    assert library.context.n_batch == 604


def test_llama_cpp_fills_the_spare_sequence_prompt_by_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    found, library = worker(monkeypatch, sequences=2, context_len=10, prompt_tokens=4)
    found._fill()
    assert [[(sequence, place) for sequence, place, _, _ in one] for one in library.passes] == [
        [(2, 0), (2, 1), (2, 2), (2, 3)],
        [(2, 4), (2, 5), (2, 6), (2, 7)],
        [(2, 8)],  # nine tokens: one less than the context
    ]
    assert found.lengths == [0, 0, 9, 0]


def test_llama_cpp_times_a_pass_over_contexts_of_the_length_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found, library = worker(monkeypatch, sequences=3, context_len=50, prompt_tokens=8)
    found.lengths = [5, 20, 0, 49, 0]
    assert found.seconds(2, 10, 3) == 0.0
    # the first is too short: it is copied from the spare one and cut; the second is cut alone
    assert library.copied == [(3, 0)]
    assert library.cut == [(0, 0), (0, 10), (1, 10), (0, 10), (4, 0)]
    warm, timed = library.passes
    assert warm == [(0, 10, (7 * 10 + 0) % 100, 1)]
    assert timed == [
        (0, 10, 70, 1),
        (1, 10, 71, 1),
        (4, 0, 4, 0),
        (4, 1, 11, 0),
        (4, 2, 18, 1),  # the last token of the prompt predicts
    ]
    assert found.lengths == [11, 11, 0, 49, 0]


def test_llama_cpp_says_what_its_library_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    found, library = worker(monkeypatch, sequences=2, context_len=10, prompt_tokens=4)
    library.status = 1
    with pytest.raises(RuntimeError, match=r"^llama_decode returned 1$"):
        found._decode([(0, 0, True)])


def test_a_clock_of_the_processor_is_put_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(WORKERS)
    module = importlib.import_module("worker")
    clock = Time()
    monkeypatch.setattr(module, "time", SimpleNamespace(
        process_time=lambda: 3.0, perf_counter=clock.perf_counter, sleep=clock.sleep,
    ))  # fmt: skip
    cpu = module.Clock(cpu=True)
    cpu.wait_until(10.0)
    assert (cpu.now(), cpu.skipped_s, clock.slept) == (10.0, 7.0, [])
    wall = module.Clock(cpu=False)
    wall.wait_until(5.5)
    assert clock.slept[0] == pytest.approx(0.499)
    assert wall.now() >= 5.5
    before = clock.now
    wall.wait_until(before - 1.0)  # over
    assert clock.now == before


def test_a_worker_answers_line_by_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a process of its own: versions, the time of a pass, what was served, and an error by its name."""
    import json
    import subprocess

    script = tmp_path / "engine.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(WORKERS)!r})\n"
        "from worker import answer_commands\n"
        "class Engine:\n"
        "    def __init__(self, config): self.versions = {'mine': config['version']}; print('loud')\n"
        "    def seconds(self, sequences, context_len, prompt_tokens): return sequences / context_len + prompt_tokens\n"
        "    def serve(self, arrival_s, input_len, output_len): return {'ttft_s': arrival_s, 'e2e_s': output_len}\n"
        "answer_commands(Engine)\n"
    )
    lines = [
        {"sequences": 1, "context_len": 4, "prompt_tokens": 2},
        {"serve": True, "arrival_s": [0.5], "input_len": [3], "output_len": [7]},
        {"sequences": 1, "context_len": 0, "prompt_tokens": 2},
        {"sequences": 1, "context_len": 4, "prompt_tokens": 2},
    ]
    ran = subprocess.run(
        [sys.executable, str(script), '{"version": "1.2"}'],
        input="".join(json.dumps(one) + "\n" for one in lines), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [json.loads(line) for line in ran.stdout.splitlines()] == [
        {"versions": {"mine": "1.2"}},
        {"seconds": 2.25},
        {"ttft_s": [0.5], "e2e_s": [7]},
        {"error": "ZeroDivisionError: division by zero"},
    ]
    assert "loud" in ran.stderr


@pytest.mark.parametrize(
    ("number", "first", "last"),
    [
        (1, 1, 1),
        (5, 1, 5),  # P(Binomial(5, 1/2) < 1) = 1/32, more than 2.5 %: all of them
        (6, 1, 6),  # 1/64
        (8, 1, 8),  # < 2: 9/256
        (9, 2, 8),  # < 2: 10/512, < 3: 46/512
        (12, 3, 10),  # < 3: 79/4096, < 4: 299/4096
        (71, 27, 45),  # of many by the normal distribution: (71 - 1.96 √71) / 2 = 27.2
    ],
)
def test_the_interval_of_a_median(number: int, first: int, last: int) -> None:
    seconds = tuple(float(one) for one in np.random.default_rng(number).permutation(np.arange(1, number + 1)))
    repeated = Repeated(seconds=seconds)
    assert repeated.interval == (float(first), float(last))
    assert repeated.uncertainty == pytest.approx(0.5 * (last - first) / repeated.median_s)


def test_a_processor_is_described_by_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"model name": "Example 9000", "vendor_id": "Example", "cpu MHz": "2450.5"}
    monkeypatch.setattr(rates, "_cpu_info", lambda: said)
    monkeypatch.setattr(rates, "_caches", lambda: [32768.0, 2.0**20, 2.0**25])
    monkeypatch.setattr(rates, "available_cores", lambda: 3)
    found = rates.processor()
    assert (found.name, found.vendor, found.kind, found.cores) == ("Example 9000", "Example", "cpu", 3)
    assert (found.clock_hz, found.cache_bytes, found.count) == (2450.5e6, 2.0**25, 1)
    monkeypatch.setattr(rates, "_cpu_info", dict)
    assert rates.processor().clock_hz is None
    assert rates.processor().vendor == "-"


def test_the_error_of_a_prediction_is_relative_to_the_measurement() -> None:
    assert Compared(kind="decode", predicted_s=1.5, measured_s=1.0).error == 0.5
    assert Compared(kind="decode", predicted_s=0.5, measured_s=1.0).error == -0.5
    assert (Compared(kind="decode", predicted_s=1.0, measured_s=1.0).load, 0.0) == (0.0, 0.0)


def test_the_avalanche_of_ciphers_that_change_known_bits() -> None:
    pytest.importorskip("jax", reason="JAX has no wheel on this platform")
    from rackline.lab.cipher import avalanche

    words = np.arange(64, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert avalanche(lambda one: one, words, 4).tolist() == np.eye(4).tolist()
    assert avalanche(lambda one: ~one, words, 4).tolist() == np.eye(4).tolist()
    shifted = np.eye(4, k=1)  # bit i moves to i + 1
    assert avalanche(lambda one: one << np.uint64(1), words, 4).tolist() == shifted.tolist()
    assert avalanche(lambda one: one * np.uint64(0), words, 4).tolist() == np.zeros((4, 4)).tolist()


def test_a_clock_of_slots_takes_the_step_of_its_number_of_sequences() -> None:
    pytest.importorskip("jax", reason="JAX has no wheel on this platform")
    from rackline.lab.serve import SlotClock, mean_clock

    clock = SlotClock(step_s=(1.0, 1.5, 2.5), prompt_s=10.0)
    for number, seconds in ((1, 1.0), (2, 1.5), (3, 2.5)):
        assert clock.line(number, float(number)) == (seconds, 0.0, 0.0, 0.0, float("inf"), 0.0)
        assert clock.straight(number, 700.0, 300.0, float(number)) == seconds
        assert clock.steps(np.full(number, 50.0), np.arange(4.0), float(number)).tolist() == [seconds] * 4
        chunk: Any = object()
        assert clock.prompts(number, 700.0, 300.0, [chunk, chunk], 0.0, 0.0) == seconds + 20.0
    assert clock.prompts(0, 0.0, 0.0, [chunk], 0.0, 0.0) == 10.0
    assert (clock.bends(2, 2.0), clock.straight_from) == ((), 0.0)
    other = SlotClock(step_s=(3.0, 2.5, 3.5), prompt_s=20.0)
    assert mean_clock(clock, other) == SlotClock(step_s=(2.0, 2.0, 3.0), prompt_s=15.0)

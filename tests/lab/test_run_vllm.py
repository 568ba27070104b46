"""The worker of vLLM, with an engine that is made up: what it asks of the engine, and what it times."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

WORKERS = Path(__file__).parents[2] / "src" / "rackline" / "lab" / "workers"
SHAPE = {
    "d_model": 64, "d_ff": 96, "num_layers": 2, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 16, "vocab_size": 1000,
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "limits": {"sequences": 4, "context_len": 200, "prompt_tokens": 64}, "max_num_seqs": 2, "max_batched_tokens": 96,
    "cpu_clock": False, "shape": SHAPE, "dtype": "bf16", "device": "gpu", "seed": 5,
}  # fmt: skip
STEP_S = 0.25


@dataclass
class MadeEngine:
    """Each step computes the prompts that wait within its tokens, and gives every other request a token."""

    arguments: SimpleNamespace
    now_s: float = 0.0
    added: list[tuple[str, list[int], dict[str, Any]]] = field(default_factory=list[Any])
    aborted: list[list[str]] = field(default_factory=list[Any])
    waiting: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    left: dict[str, int] = field(default_factory=dict[str, int])
    steps: int = 0

    def add_request(self, name: str, prompt: dict[str, list[int]], how: SimpleNamespace) -> None:
        self.added.append((name, prompt["prompt_token_ids"], vars(how)))
        self.waiting[name] = (len(prompt["prompt_token_ids"]), how.max_tokens)

    def abort_request(self, names: Iterable[str]) -> None:
        self.aborted.append(list(names))
        for name in names:
            self.waiting.pop(name, None)
            self.left.pop(name, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting or self.left)

    def step(self) -> list[SimpleNamespace]:
        self.steps += 1
        self.now_s += STEP_S
        budget, out = self.arguments.max_num_batched_tokens, list[SimpleNamespace]()
        for name in list(self.left):
            self.left[name] -= 1
            out.append(self._told(name))
        for name, (tokens, outputs) in list(self.waiting.items()):
            took = min(tokens, budget)
            budget -= took
            self.waiting[name] = (tokens - took, outputs)
            if tokens > took:
                out.append(SimpleNamespace(request_id=name, finished=False, outputs=[SimpleNamespace(token_ids=[])]))
                continue
            del self.waiting[name]
            self.left[name] = outputs - 1
            out.append(self._told(name))
        return out

    def _told(self, name: str) -> SimpleNamespace:
        ended = self.left[name] <= 0
        if ended:
            del self.left[name]
        return SimpleNamespace(request_id=name, finished=ended, outputs=[SimpleNamespace(token_ids=[7])])


def started(patch: pytest.MonkeyPatch, **changes: Any) -> tuple[Any, MadeEngine, dict[str, Any]]:
    """A worker that has started, its engine, and the configuration of the model that was written for it."""
    written: dict[str, Any] = {}

    def arguments(**given: Any) -> SimpleNamespace:
        written.update(json.loads((Path(given["model"]) / "config.json").read_text(encoding="utf-8")))
        return SimpleNamespace(**given)

    made = ModuleType("vllm")
    made.__dict__.update(
        __version__="0.99.1",
        EngineArgs=arguments,
        LLMEngine=SimpleNamespace(from_engine_args=MadeEngine),
        SamplingParams=SimpleNamespace,
    )
    patch.setitem(sys.modules, "vllm", made)
    patch.setattr(os, "environ", os.environ.copy())  # the worker sets some at import
    patch.syspath_prepend(WORKERS)
    found = importlib.import_module("run_vllm").Vllm(CONFIG | changes)
    engine = found.engine

    def wait_until(moment: float) -> None:
        engine.now_s = max(engine.now_s, moment)

    found.clock = SimpleNamespace(now=lambda: engine.now_s, wait_until=wait_until)
    return found, engine, written


def test_it_starts_a_llama_of_the_shape_with_room_beyond_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    found, engine, written = started(monkeypatch)
    assert found.versions == {"vllm": "0.99.1"}
    given = {key: value for key, value in vars(engine.arguments).items() if key != "model"}
    assert given == {
        "skip_tokenizer_init": True, "load_format": "dummy", "dtype": "bfloat16", "max_model_len": 232,
        "max_num_seqs": 5, "max_num_batched_tokens": 96, "enable_prefix_caching": True, "block_size": None,
        "enforce_eager": False, "seed": 5,
    }  # fmt: skip
    assert written == {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1000,
        "max_position_embeddings": 264, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    assert not Path(engine.arguments.model).exists()  # the folder was for the start alone


def test_on_one_core_of_a_processor_blocks_are_small_and_nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    _, engine, _ = started(monkeypatch, device="cpu", dtype="fp32")
    assert (engine.arguments.block_size, engine.arguments.enforce_eager) == (32, True)
    assert engine.arguments.dtype == "float32"


def test_a_decode_step_is_timed_once_its_contexts_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found, engine, _ = started(monkeypatch)
    assert found.seconds(3, 50, 0) == STEP_S
    assert [(name, len(prompt)) for name, prompt, _ in engine.added] == [("1", 50), ("2", 50), ("3", 50)]
    assert engine.added[1][1][:3] == [962, 993, 32]  # a text of its own: 2 * 7919, 31 further each, of 992 ids from 4
    assert engine.added[0][2] == {
        "max_tokens": 30, "min_tokens": 30, "ignore_eos": True, "temperature": 0.0, "detokenize": False,
    }  # fmt: skip
    assert engine.steps == 3  # 96 and 54 tokens of prompts, then the step that is timed
    assert found.held == (3, 52)
    found.seconds(3, 51, 0)  # the same contexts, a token further
    assert (len(engine.added), engine.steps, engine.aborted) == (3, 4, [])
    found.seconds(3, 60, 0)  # longer: they are computed anew, of the same texts
    assert engine.aborted == [["1", "2", "3"]]
    assert [prompt[:50] for _, prompt, _ in engine.added[3:]] == [prompt for _, prompt, _ in engine.added[:3]]
    assert found.held == (3, 62)
    found.seconds(3, 54, 0)  # eight tokens less than is held
    assert len(engine.added) == 9
    found.seconds(2, 55, 0)  # fewer of them
    assert len(engine.added) == 11


def test_a_prompt_is_new_each_time_and_gone_after_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    found, engine, _ = started(monkeypatch)
    assert found.seconds(0, 0, 64) == STEP_S
    assert found.seconds(0, 0, 64) == STEP_S
    (one, first, how), (two, second, _) = engine.added
    assert (one, two, len(first), how["max_tokens"]) == ("1", "2", 64, 2)
    assert first[:2] == [1_000_003 % 992 + 4, 1_000_034 % 992 + 4]
    assert first != second
    assert engine.aborted == [["1"], ["2"]]
    assert found.seconds(1, 20, 30) == STEP_S  # beside a sequence that decodes
    assert [len(prompt) for _, prompt, _ in engine.added[2:]] == [20, 30]
    assert engine.aborted[-1] == ["4"]
    assert list(engine.left) == ["3"]


def test_requests_are_sent_when_they_are_due_as_many_as_are_served_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found, engine, _ = started(monkeypatch)
    found.seconds(1, 20, 0)
    told = found.serve([0.0, 0.1, 0.2, 9.0], [96, 10, 10, 10], [3, 2, 1, 2])
    # two at once: the second comes after the first step, the third when one of them has ended
    assert engine.aborted == [["1"]]
    assert told["ttft_s"] == pytest.approx([0.25, 0.4, 0.8, 0.25])
    assert told["e2e_s"] == pytest.approx([0.75, 0.65, 0.8, 0.5])
    assert [len(prompt) for _, prompt, _ in engine.added[1:]] == [96, 10, 10, 10]

"""vLLM in this process, with random weights and without a tokenizer; a pass is one step of its engine.

On a processor it computes on the cores that a vLLM server computes on: those of VLLM_CPU_OMP_THREADS_BIND, by default
all but one, which the server keeps for its scheduler and for HTTP.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from worker import Clock, answer_commands

for name, value in {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}.items():
    os.environ.setdefault(name, value)

BLOCK = 32  # tokens of the cache; what a context has beyond whole blocks is computed anew for each of its passes
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def write_config(folder: Path, shape: dict[str, int], context_len: int, dtype: str) -> None:
    """The config.json of a Llama."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape["d_model"],
        "intermediate_size": shape["d_ff"],
        "num_hidden_layers": shape["num_layers"],
        "num_attention_heads": shape["num_q_heads"],
        "num_key_value_heads": shape["num_kv_heads"],
        "head_dim": shape["head_dim"],
        "vocab_size": shape["vocab_size"],
        "max_position_embeddings": context_len + 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": DTYPES[dtype],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def computing_cores(config: Any) -> list[int]:
    """The cores that vLLM's own rule gives to the kernels of a server on a processor."""
    from vllm.utils.ompmultiprocessing import OMPProcessManager

    lists = OMPProcessManager(config).cpu_lists
    return list(lists[0]) if lists else sorted(os.sched_getaffinity(0))


class Vllm:
    """The engine; contexts come from its prefix cache once they were computed, measured prompts are new ones."""

    def __init__(self, config: dict[str, Any]) -> None:
        import vllm
        from vllm import EngineArgs, LLMEngine, SamplingParams

        self.params = SamplingParams
        self.limits, self.served = config["limits"], int(config["max_num_seqs"])
        self.clock = Clock(cpu=bool(config["cpu_clock"]))
        self.vocab = int(config["shape"]["vocab_size"])
        self.versions = {vllm.__name__: str(vllm.__version__)}
        self.number = 0
        context_len = int(self.limits["context_len"])
        with tempfile.TemporaryDirectory() as folder:
            write_config(Path(folder), config["shape"], context_len, config["dtype"])
            arguments = EngineArgs(
                model=folder,
                skip_tokenizer_init=True,
                load_format="dummy",
                dtype=DTYPES[config["dtype"]],
                max_model_len=context_len + 32,
                max_num_seqs=int(self.limits["sequences"]) + 1,
                max_num_batched_tokens=int(config["max_batched_tokens"]),
                enable_prefix_caching=True,
                block_size=BLOCK if config["device"] == "cpu" else None,
                enforce_eager=config["device"] == "cpu",
                seed=int(config["seed"]),
            )
            if config["device"] == "cpu" and len(os.sched_getaffinity(0)) > 1:
                import torch

                cores = computing_cores(arguments.create_engine_config())
                os.sched_setaffinity(0, cores)
                torch.set_num_threads(len(cores))
            self.engine = LLMEngine.from_engine_args(arguments)
        self.held: tuple[int, int] = (0, 0)
        self.running: list[str] = []

    def _add(self, tokens: int, outputs: int, text: int | None = None) -> str:
        """A request; of the same `text` the cache is there from the second time on, without one it is new."""
        self.number += 1
        name = str(self.number)
        start = 1_000_003 * self.number if text is None else 7919 * (text + 1)
        prompt = {"prompt_token_ids": [(start + 31 * place) % (self.vocab - 8) + 4 for place in range(tokens)]}
        how = self.params(max_tokens=outputs, min_tokens=outputs, ignore_eos=True, temperature=0.0, detokenize=False)
        self.engine.add_request(name, prompt, how)
        return name

    def _step(self) -> tuple[float, list[Any]]:
        began = self.clock.now()
        found = self.engine.step()
        return self.clock.now() - began, found

    def _drop(self) -> None:
        if self.running:
            self.engine.abort_request(self.running)
        self.running = []
        while self.engine.has_unfinished_requests():
            self.engine.step()

    def _hold(self, sequences: int, context_len: int) -> None:
        """Sequences that have this much in the cache, up to a few tokens more, and decode from now on."""
        grown = self.held[1] - context_len
        if self.held[0] == sequences and 0 <= grown < 8:
            return
        self._drop()
        self.running = [self._add(context_len, 30, text) for text in range(sequences)]
        started: set[str] = set()
        steps = 0
        while len(started) < sequences and steps < 10_000:
            started |= {one.request_id for one in self._step()[1] if one.outputs[0].token_ids}
            steps += 1
        # those whose prompt came first are a few tokens ahead
        self.held = (sequences, context_len + 1)

    def seconds(self, sequences: int, context_len: int, prompt_tokens: int) -> float:
        """Time of one step [s]; what it needs in the cache is computed before it."""
        if sequences:
            self._hold(sequences, context_len)
        else:
            self._drop()
            self.held = (0, 0)
        added = self._add(prompt_tokens, 2) if prompt_tokens else ""
        took, _ = self._step()
        if added:
            self.engine.abort_request([added])
        self.held = (self.held[0], self.held[1] + 1)
        return took

    def serve(self, arrival_s: list[float], input_len: list[int], output_len: list[int]) -> dict[str, list[float]]:
        """Requests at their times; an answer is seen when its step ends."""
        self._drop()
        self.held = (0, 0)
        count = len(arrival_s)
        first, last = [0.0] * count, [0.0] * count
        names: dict[str, int] = {}
        came = done = 0
        began = self.clock.now()
        while done < count:
            now = self.clock.now() - began
            while came < count and arrival_s[came] <= now and came - done < self.served:
                names[self._add(input_len[came], output_len[came])] = came
                came += 1
            if not self.engine.has_unfinished_requests():
                self.clock.wait_until(began + arrival_s[came])
                continue
            _, found = self._step()
            now = self.clock.now() - began
            for one in found:
                place = names[one.request_id]
                if not first[place] and one.outputs[0].token_ids:
                    first[place] = now
                if one.finished:
                    last[place] = now
                    done += 1
        return {
            "ttft_s": [end - start for end, start in zip(first, arrival_s, strict=True)],
            "e2e_s": [end - start for end, start in zip(last, arrival_s, strict=True)],
        }


if __name__ == "__main__":
    answer_commands(Vllm)

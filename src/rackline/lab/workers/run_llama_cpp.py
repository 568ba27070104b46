"""llama.cpp by its C interface, with a random-weight model in a file as it reads them (GGUF).

Each sequence has its own part of the cache. A pass is one call of `llama_decode`.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false, reportUnknownParameterType=false

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from worker import Clock, answer_commands

FLOAT32, FLOAT16 = 0, 1  # numbers of ggml's types


def _add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """A word for each id, so that a server has a text to send."""
    special = ["<unk>", "<s>", "</s>"]
    single = [f"<0x{byte:02X}>" for byte in range(256)]
    words = [f"\u2581w{number}" for number in range(size - len(special) - len(single))]
    kinds = gguf.TokenType
    fields = {
        "tokenizer_model": "llama",
        "token_list": [*special, *single, *words],
        "token_scores": [0.0] * size,
        "token_types": [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * 256 + [kinds.NORMAL] * len(words),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": False,
    }
    _add_fields(writer, fields)


def _add_fields(writer: gguf.GGUFWriter, fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        getattr(writer, f"add_{name}")(value)


def write_model(path: Path, shape: dict[str, int], dtype: str, context_len: int, seed: int) -> None:
    """A Llama with random weights as GGUF."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "llama")
    fields = {
        "context_length": context_len,
        "embedding_length": shape["d_model"],
        "block_count": shape["num_layers"],
        "feed_forward_length": shape["d_ff"],
        "head_count": shape["num_q_heads"],
        "head_count_kv": shape["num_kv_heads"],
        "key_length": shape["head_dim"],
        "value_length": shape["head_dim"],
        "rope_dimension_count": shape["head_dim"],
        "layer_norm_rms_eps": 1e-6,
        "vocab_size": shape["vocab_size"],
    }
    _add_fields(writer, fields)
    _add_vocabulary(writer, shape["vocab_size"])

    def add(name: str, outputs: int, inputs: int) -> None:
        weights = random.standard_normal((outputs, inputs), dtype=np.float32) / np.float32(np.sqrt(inputs))
        if dtype == "fp32":
            writer.add_tensor(name, weights)
        else:
            halves = (weights.view(np.uint32) >> 16).astype(np.uint16)
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(name, halves.view(np.uint8), raw_shape=(outputs, 2 * inputs), raw_dtype=kind)

    d_model = shape["d_model"]
    q, kv = (shape[heads] * shape["head_dim"] for heads in ("num_q_heads", "num_kv_heads"))
    add("token_embd.weight", shape["vocab_size"], d_model)
    for number in range(shape["num_layers"]):
        sizes = {
            "attn_q": (q, d_model), "attn_k": (kv, d_model), "attn_v": (kv, d_model), "attn_output": (d_model, q),
            "ffn_gate": (shape["d_ff"], d_model), "ffn_up": (shape["d_ff"], d_model),
            "ffn_down": (d_model, shape["d_ff"]),
        }  # fmt: skip
        for name, (outputs, inputs) in sizes.items():
            add(f"blk.{number}.{name}.weight", outputs, inputs)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{number}.{name}.weight", np.ones(d_model, dtype=np.float32))
    writer.add_tensor("output_norm.weight", np.ones(d_model, dtype=np.float32))
    add("output.weight", shape["vocab_size"], d_model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    """The engine with its context; the last sequence is a spare one that the others copy."""

    def __init__(self, config: dict[str, Any]) -> None:
        import llama_cpp.llama_cpp as api  # here: writing a model takes none of it

        self.api = api
        shape, limits = config["shape"], config["limits"]
        self.versions = {"llama-cpp-python": __import__("llama_cpp").__version__}
        self.limits = limits
        self.clock = Clock(cpu=bool(config["cpu_clock"]))
        self.vocab = int(shape["vocab_size"])
        self.slots = int(limits["sequences"])
        self.served, self.budget = int(config["max_num_seqs"]), int(config["max_batched_tokens"])
        self.api.llama_backend_init()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "random.gguf"
            write_model(path, shape, config["dtype"], int(limits["context_len"]), int(config["seed"]))
            how = self.api.llama_model_default_params()
            how.n_gpu_layers = 999 if config["device"] == "gpu" else 0
            if hasattr(how, "use_mmap"):
                how.use_mmap = False
            self.model = self.api.llama_model_load_from_file(str(path).encode(), how)
            if not self.model:
                raise RuntimeError("the model was not loaded")
            self._start(int(config["cores"]), config["dtype"])
            self._fill()

    def _start(self, cores: int, dtype: str) -> None:
        how = self.api.llama_context_default_params()
        how.n_seq_max = self.slots + 2
        how.n_ctx = (self.slots + 2) * -(-(int(self.limits["context_len"]) + 1) // 256) * 256
        how.n_batch = how.n_ubatch = max(int(self.limits["prompt_tokens"]) + self.slots, 512)
        how.n_threads = how.n_threads_batch = cores
        how.type_k = how.type_v = FLOAT32 if dtype == "fp32" else FLOAT16
        self.context = self.api.llama_init_from_model(self.model, how)
        if not self.context:
            raise RuntimeError("no context")
        self.memory = self.api.llama_get_memory(self.context)
        self.batch = self.api.llama_batch_init(int(how.n_batch), 0, 1)
        self.lengths = [0] * (self.slots + 2)
        self.spare, self.entry = self.slots, self.slots + 1

    def _fill(self) -> None:
        """The spare sequence as long as any can be."""
        step, most = int(self.limits["prompt_tokens"]), int(self.limits["context_len"]) - 1
        for start in range(0, most, step):
            self._decode([(self.spare, place, False) for place in range(start, min(start + step, most))])
        self.lengths[self.spare] = most

    def _decode(self, tokens: list[tuple[int, int, bool]]) -> float:
        """One pass over (sequence, position, whether its logits are wanted); its time [s]."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for place, (sequence, position, wanted) in enumerate(tokens):
            batch.token[place] = (7 * position + sequence) % self.vocab
            batch.pos[place] = position
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = sequence
            batch.logits[place] = wanted
        began = self.clock.now()
        status = self.api.llama_decode(self.context, batch)
        self.api.llama_synchronize(self.context)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        return self.clock.now() - began

    def _cut(self, sequence: int, length: int) -> None:
        self.api.llama_memory_seq_rm(self.memory, sequence, length, -1)
        self.lengths[sequence] = length

    def seconds(self, sequences: int, context_len: int, prompt_tokens: int) -> float:
        """Time of one pass [s]; caches are copied, and the copies made, before it."""
        stale = [one for one in range(sequences) if self.lengths[one] < context_len]
        for one in stale:
            self._cut(one, 0)
            self.api.llama_memory_seq_cp(self.memory, self.spare, one, -1, -1)
        for one in range(sequences):
            self._cut(one, context_len)
        if stale:
            self._decode([(one, context_len, True) for one in stale])
            for one in stale:
                self._cut(one, context_len)
        self._cut(self.entry, 0)
        prompt = [(self.entry, place, place == prompt_tokens - 1) for place in range(prompt_tokens)]
        took = self._decode([(one, context_len, True) for one in range(sequences)] + prompt)
        for one in range(sequences):
            self.lengths[one] = context_len + 1
        return took

    def serve(self, arrival_s: list[float], input_len: list[int], output_len: list[int]) -> dict[str, list[float]]:
        """Each pass holds a token of every sequence that decodes, and prompts in the order of arrival."""
        count, budget = len(arrival_s), self.budget
        for one in range(self.slots):
            self._cut(one, 0)
        first, last = [0.0] * count, [0.0] * count
        done_tokens, made = [0] * count, [0] * count
        slots: dict[int, int] = {}
        free = list(range(self.served))  # the one that has been free for longest is taken
        came = done = 0
        began = self.clock.now()
        while done < count:
            now = self.clock.now() - began
            while came < count and arrival_s[came] <= now and free:
                slots[came] = free.pop(0)
                came += 1
            # only neighbours share a pass over the weights; llama-server goes through its slots in order, too
            slots = dict(sorted(slots.items(), key=lambda item: item[1]))
            if not slots:
                self.clock.wait_until(began + arrival_s[came])
                continue
            tokens = [
                (slot, self.lengths[slot], True) for one, slot in slots.items() if done_tokens[one] == input_len[one]
            ]
            grown = {one: 1 for one in slots if done_tokens[one] == input_len[one]}
            for one, slot in slots.items():
                new = min(input_len[one] - done_tokens[one], budget - len(tokens))
                if done_tokens[one] < input_len[one] and new > 0:
                    start, whole = done_tokens[one], input_len[one]
                    tokens += [(slot, place, place == whole - 1) for place in range(start, start + new)]
                    grown[one] = new
            self._decode(tokens)
            now = self.clock.now() - began
            for one, new in grown.items():
                slot = slots[one]
                self.lengths[slot] += new
                if done_tokens[one] < input_len[one]:
                    done_tokens[one] += new
                    if done_tokens[one] < input_len[one]:
                        continue
                    first[one] = now
                made[one] += 1
                if made[one] >= output_len[one]:
                    last[one] = now
                    done += 1
                    free.append(slot)
                    del slots[one]
                    self._cut(slot, 0)
        return {
            "ttft_s": [end - start for end, start in zip(first, arrival_s, strict=True)],
            "e2e_s": [end - start for end, start in zip(last, arrival_s, strict=True)],
        }


if __name__ == "__main__":
    answer_commands(LlamaCpp)

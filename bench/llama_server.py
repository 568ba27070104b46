"""llama-server's command line on the server of llama.cpp that the package xllamacpp brings, for machines without one.

    python llama_server.py --model FILE --ctx-size 8192 --parallel 8 --batch-size 512 --ubatch-size 512 --threads 2 \
        --cache-type-k f32 --cache-type-v f32 --cache-ram 0 --host 127.0.0.1 --port 8080

Options have the names and meanings of llama-server's own; others are refused. The server is the same code, linked into
the package, and starts when the model is loaded.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import argparse
import signal

import xllamacpp

TYPES = {"f32": "GGML_TYPE_F32", "f16": "GGML_TYPE_F16", "bf16": "GGML_TYPE_BF16", "q8_0": "GGML_TYPE_Q8_0"}


def main() -> None:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", required=True)
    for name in ("ctx-size", "parallel", "batch-size", "ubatch-size", "threads", "cache-ram", "port"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("cache-type-k", "cache-type-v"):
        parser.add_argument(f"--{name}", choices=TYPES, default="f16")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--no-cache-prompt", action="store_true")
    given = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.hostnames, params.port = [given.host], given.port
    params.n_ctx, params.n_parallel = given.ctx_size, given.parallel
    params.n_batch, params.n_ubatch = given.batch_size, given.ubatch_size
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    params.cache_type_k = getattr(xllamacpp.ggml_type, TYPES[given.cache_type_k])
    params.cache_type_v = getattr(xllamacpp.ggml_type, TYPES[given.cache_type_v])
    params.cache_ram_mib = given.cache_ram
    params.cache_prompt = not given.no_cache_prompt
    params.warmup = True
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()

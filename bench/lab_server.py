"""The lab's small transformer behind HTTP, until Ctrl-C: something to observe where there is no other server.

    uv run --extra lab python bench/lab_server.py [PORT] [FOLDER]

It prints its address, and writes the model's config.json to FOLDER.
"""

import contextlib
import json
import sys
from pathlib import Path

from rackline.lab import start_jax

if __name__ == "__main__":
    start_jax("cpu")
    from rackline.lab.http_server import CONFIG, Server

    if len(sys.argv) > 2:
        (Path(sys.argv[2]) / "config.json").write_text(json.dumps(CONFIG))
    server = Server(port=int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(server.url, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    server.engine.stop()

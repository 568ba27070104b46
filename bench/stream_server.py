"""A server that streams events at fixed intervals and notes when it sent each: the other end of `bench/observe.py`.

    python bench/stream_server.py [PORT]

It speaks just enough of HTTP and of OpenAI's completions. Each answer has `max_tokens` events, half a second apart.
GET /sent returns, by the first four ids of the prompt, the moments at which events were sent by the clock of
`time.perf_counter`, which all processes of a machine share on Linux.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time

INTERVAL_S = 0.5
SENT: dict[str, list[float]] = {}


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            if first.startswith("GET"):
                data = json.dumps(SENT if "/sent" in first else {"data": [{"id": "clockwork"}]}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
                await writer.drain()
                continue
            await stream(writer, json.loads(body))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def stream(writer: asyncio.StreamWriter, asked: dict) -> None:
    """One answer, an event at each tick."""
    sent = SENT.setdefault(",".join(map(str, asked["prompt"][:4])), [])
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    event = b'data: {"choices":[{"index":0,"text":" word","finish_reason":null}]}\n\n'
    began = time.perf_counter()
    for number in range(asked["max_tokens"]):
        await asyncio.sleep(max(began + (number + 1) * INTERVAL_S - time.perf_counter(), 0.0))
        sent.append(time.perf_counter())
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))
    usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": asked["max_tokens"]}
    end = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n'
    end += b"data: %s\n\ndata: [DONE]\n\n" % json.dumps({"choices": [], "usage": usage}).encode()
    writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(end), end))
    await writer.drain()


async def main(port: int) -> None:
    """Listen on loopback until it is ended."""
    gc.disable()
    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))

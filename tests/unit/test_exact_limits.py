"""Numbers and bounds at which a small change went unnoticed: FLOP by hand, dollars an hour, limits of what is read."""

from __future__ import annotations

import asyncio
import io
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from rich.text import Text

import rackline as rl
from helpers import model
from rackline import arch
from rackline.cli.screen import Screen
from rackline.errors import ConfigError, InputError
from rackline.lab.stream import Bounds, Stream
from rackline.parallel import Layout
from rackline.pricing.offered import Demand
from rackline.search import finalists
from rackline.search.sustained_rate import SustainedRate
from rackline.training.flop import model_flop
from rackline.web.app import create_app
from rackline.web.asked import Limits, Settings


@pytest.mark.parametrize(("frozen", "each"), [(False, 6.0), (True, 4.0)])
def test_flop_of_a_step_are_those_of_its_products(frozen: bool, each: float) -> None:
    """6 a weight and token, 4 where weights get no gradient (Chowdhery et al. 2022); attention as of two causal."""
    llama = model("llama-3.1-8b")
    attention = 3.0 * 32 * 4.0 * 1024 * 1025 * 32 * 128  # layers, two products of 2 FLOP, heads of 128
    assert float(model_flop(llama, 1024, 3.0, frozen=frozen)) == pytest.approx(
        3.0 * (each * llama.active_params * 1024 + attention), rel=1e-12
    )


def test_sales_of_an_hour_are_those_of_its_seconds() -> None:
    fleet = cast("Any", SimpleNamespace(traffic=SimpleNamespace(tokens_per_s=500.0)))
    sold = Demand(fleet=fleet, engine="", input_len=100.0, cached_len=0.0, output_len=250.0, request_usd=0.01)
    assert sold.sales_usd_per_hour == pytest.approx(72.0, rel=1e-12)  # 2 requests a second, 7,200 an hour


class _Cheap:
    """A choice with a cost, of which simulation says that it costs a share of its estimate."""

    def __init__(self, name: str, usd: float, share: float = 1.0) -> None:
        self.name, self.usd_with_leftover, self.share = name, usd, share
        self.serving, self.leftover, self.max_num_seqs, self.sustained = "aggregated", None, 8, None
        self.prefill_pool, self.decode_pool, self.layout = None, None, Layout()
        self.num_chips = self.billed_chips = 1
        self.requests_per_s, self.saturation_requests_per_s = 1.0, 1.0
        self.estimate = SimpleNamespace(usd_per_mtok_output_all_in=usd, requests_per_s=1.0, choice=self)

    def with_sustained_rate(self, found: Any) -> _Cheap:
        served = _Cheap(self.name, self.usd_with_leftover * self.share)
        served.estimate, served.sustained = self.estimate, found
        return served


def rate_as_it_was(_: object, __: object, promised: Any) -> Any:
    return promised


@pytest.mark.parametrize(("usd", "tried"), [(1.09, True), (1.11, False)])
def test_an_option_whose_estimate_may_be_off_by_enough_is_simulated(
    monkeypatch: pytest.MonkeyPatch, usd: float, tried: bool
) -> None:
    """Up to a tenth above the best that was simulated: it turns out to be cheaper."""
    asked: list[str] = []

    def rate(estimate: Any, *_: Any, **__: Any) -> Any:
        asked.append(estimate.choice.name)
        return SustainedRate.__new__(SustainedRate)

    monkeypatch.setattr(finalists, "sustained_rate", rate)
    monkeypatch.setattr(finalists, "confirmed_rate", rate_as_it_was)
    service = cast("Any", SimpleNamespace(demand=SimpleNamespace(limits=SimpleNamespace(latencies=dict))))
    kinds = cast("Any", [[_Cheap("first", 1.0), _Cheap("second", usd, share=0.8)]])
    ((found, _),) = finalists.serve_kinds(service, kinds)
    assert asked == ["first", "second"][: 1 + tried]
    assert cast("Any", found).name == ("second" if tried else "first")


def _outcome(line_bytes: int) -> str:
    """What becomes of a stream whose first line never ends, after this many bytes."""

    async def main() -> str:
        stream = Stream(
            target=cast("Any", SimpleNamespace(url="http://a/", headers={}, hidden=str)), bounds=Bounds(), input_len=1,
            output_len=1, arrival_s=0.0, start=time.perf_counter(), saw=lambda: None,
        )  # fmt: skip

        async def parts() -> Any:
            yield b"data:" + b"x" * (line_bytes - 5)
            yield b"\n\ndata: [DONE]\n\n"

        transport = httpx2.MockTransport(lambda request: httpx2.Response(200, content=parts()))
        async with httpx2.AsyncClient(transport=transport) as client:
            await stream.run(client, b"{}")
        return stream.error

    return asyncio.run(main())


def test_a_line_of_a_stream_is_a_mebibyte_at_most() -> None:
    assert "a line of more than 1,048,576 bytes" in _outcome(2**20 + 1)
    assert "a line of more than" not in _outcome(2**20)


LARGE = b" " * Limits().body_bytes


async def _ask(
    app: Any, statuses: list[int], body: bytes | None, read: asyncio.Event, method: str = "POST", **more: str
) -> None:
    """A request whose body, where it has one, begins and never ends."""
    headers = {"host": "127.0.0.1", "content-type": "application/json", **more}
    scope = {
        "type": "http", "method": method, "path": "/api/v1/fit", "raw_path": b"/api/v1/fit", "query_string": b"",
        "headers": [(key.replace("_", "-").encode(), value.encode()) for key, value in headers.items()], "state": {},
        "http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
        "root_path": "",
    }  # fmt: skip
    parts = iter([] if body is None else [{"type": "http.request", "body": body, "more_body": True}])

    async def receive() -> Any:
        try:
            return next(parts)
        except StopIteration:
            read.set()
            await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)


def test_bodies_that_are_read_at_a_time_are_four_of_the_largest() -> None:
    """Four clients that never finish a largest body; the fifth is told to come again, the first byte of it."""

    async def main() -> tuple[int, list[int]]:
        app, statuses = create_app(), list[int]()
        events = [asyncio.Event() for _ in range(4)]
        held = [asyncio.ensure_future(_ask(app, statuses, LARGE, event)) for event in events]
        for event in events:
            await event.wait()
        before, taken = len(statuses), asyncio.Event()
        fifth = asyncio.ensure_future(_ask(app, statuses, b" ", taken))
        waiting = asyncio.ensure_future(taken.wait())
        await asyncio.wait((fifth, waiting), return_when=asyncio.FIRST_COMPLETED)
        every = (*held, fifth, waiting)
        for one in every:
            one.cancel()
        await asyncio.gather(*every, return_exceptions=True)
        return before, statuses

    assert asyncio.run(main()) == (0, [429])


def test_a_body_that_never_ends_is_given_up() -> None:
    async def main() -> list[int]:
        statuses = list[int]()
        app = create_app(Settings(limits=Limits(body_s=0.05)))
        await _ask(app, statuses, b"{", asyncio.Event())
        return statuses

    assert asyncio.run(main()) == [408]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_pages_of_other_sites_ask_nothing(method: str, site: str) -> None:
    statuses: list[int] = []
    asyncio.run(_ask(create_app(), statuses, None, asyncio.Event(), method, sec_fetch_site=site))
    assert statuses == [403]


def test_every_question_of_a_long_file_is_answered(tmp_path: Path) -> None:
    names = [f"no-such-{number}" for number in range(60)]
    file = tmp_path / "q.json"
    file.write_text(json.dumps([{"ask": "models", "name": name} for name in names]))
    answered = rl.ask(str(file)).result.answers
    assert [one.question["name"] for one in answered] == names
    assert all(one.error for one in answered)


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "hidden_size": 128}')
    with pytest.raises(ConfigError, match="the key 'hidden_size' stands twice"):
        arch.model(str(file))


def test_texts_of_others_reach_no_terminal_as_commands() -> None:
    out = io.StringIO()
    Screen(file=out, force_terminal=True, color_system="standard", width=60).print(Text("a\x1b]0;b\x9b2J", "red"))
    assert out.getvalue() == "\x1b[31ma\\x1b]0;b\\x9b2J\x1b[0m\n"
    assert str(InputError(what="a", given=1, allowed="\x1b[31m")).endswith("allowed: \\x1b[31m")

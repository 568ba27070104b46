"""Who waits for a worker process of the page, and who is refused at once."""

from __future__ import annotations

import asyncio

import pytest

from rackline.web.asked import ProblemError, Settings
from rackline.web.workers import Lane, Workers


def test_a_wait_is_expected_from_who_is_before_and_how_long_they_take() -> None:
    lane = Lane(most=2, wait_s=10.0, usual_s=3.0)
    assert lane.expected_s == 0.0
    lane.running = 2
    assert lane.expected_s == 1.5
    lane.took(8.0)
    assert lane.usual_s == pytest.approx(4.0)
    assert lane.expected_s == pytest.approx(2.0)


@pytest.mark.parametrize(("is_long", "least", "most", "wait_s"), [(True, 25, 35, 50), (False, 20, 30, 1)])
def test_of_200_questions_at_once_those_that_would_wait_in_vain_are_refused_at_once(
    is_long: bool, least: int, most: int, wait_s: int
) -> None:
    async def ask() -> tuple[int, list[ProblemError]]:
        workers = Workers(Settings(workers=2))  # none of them is ready
        asked = [
            asyncio.ensure_future(workers.ask("answer", {"question": {}}, is_long=is_long, tell=lambda _: None))
            for _ in range(200)
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        refused = [one.exception() for one in asked if one.done()]
        waiting = [one for one in asked if not one.done()]
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return len(waiting), [one for one in refused if isinstance(one, ProblemError)]

    waiting, refused = asyncio.run(ask())
    assert waiting + len(refused) == 200
    assert least <= waiting <= most  # a minute's work of one worker; 0.6 s of two, 0.05 s each
    assert {one.status for one in refused} == {429}
    assert int(refused[0].headers["Retry-After"]) >= wait_s

"""Loads the program before the first question: worker processes are copies of the one that has imported this."""

from __future__ import annotations

from rackline.api.answer import answer, find_verb
from rackline.web.asked import offered_names

for _name in offered_names():
    find_verb(_name)
# reads calibrations, loads what is imported where it is used, and compiles the simulator's loop
_on = {"model": "llama-3.1-8b", "on": "dgx-h100"}
answer(find_verb("explain").question.from_data({**_on, "batch": 1, "context": 1000}))
_served = {"rate": "1", "input": 100, "output": 10, "requests": 100}
answer(find_verb("simulate").question.from_data({**_on, "chips": 1, **_served}))

"""Loads the program before the first question: worker processes are copies of the one that has imported this."""

from __future__ import annotations

from rackline.api.answer import answer, find_verb
from rackline.web.offered import OFFERED

for _name in OFFERED:
    find_verb(_name)
# reads calibrations and loads what is imported where it is used
_first = {"model": "llama-3.1-8b", "on": "dgx-h100", "batch": 1, "context": 1000}
answer(find_verb("explain").question.from_data(_first))

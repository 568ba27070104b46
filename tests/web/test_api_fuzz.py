"""Random requests of the API's own description; `bench/web_fuzz.py` asks fifteen times as many."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "web_fuzz.py"


@pytest.mark.slow
def test_random_requests_fail_nothing_and_hang_nowhere() -> (
    None
):  # endpoints without options repeat their cases, which count once
    done = subprocess.run([sys.executable, str(SCRIPT), "--cases", "320"], capture_output=True, text=True, timeout=1200)
    found = json.loads(done.stdout)
    assert found["failures"] == []
    assert found["alive"]
    assert found["cases"] >= 200
    assert done.returncode == 0

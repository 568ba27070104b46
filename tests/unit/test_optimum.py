"""Fixing a neighbour of an answer never makes it cheaper: eight of the questions of bench/optimum.py."""

from __future__ import annotations

from scripts import load_script

optimum = load_script("optimum")
QUESTIONS = optimum.questions(60, 36)

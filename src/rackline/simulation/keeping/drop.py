"""Free the blocks when a call ends: each call computes its whole prompt, but for blocks that a running one holds."""

from rackline.simulation.keeping import Keeping

KEEPING = Keeping(name="drop", place="nowhere", source="the discard of InferCept (arXiv:2402.01869)")

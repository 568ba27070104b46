"""Move to the first tier behind HBM as soon as a call ends, and back when the next one comes.

The copy out runs beside the passes; the copy back lengthens the pass that waits for it.
"""

from rackline.simulation.keeping import Keeping

KEEPING = Keeping(
    name="offload", place="tier", source="the swap of InferCept (arXiv:2402.01869); LMCache (arXiv:2510.09665)"
)

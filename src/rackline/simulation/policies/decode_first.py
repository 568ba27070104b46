"""A batch runs to its end before the next one is admitted."""

from rackline.simulation.policies import Policy

POLICY = Policy(
    name="decode_first",
    passes="batch",
    reserve="final",
    source="FasterTransformer; batch-level scheduling in Yu et al. 2022",
)

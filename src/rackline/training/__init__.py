"""Training: a step, its memory, its pipeline schedule, and the reliability of a run."""

"""Training: a step, its memory, its pipeline schedule, and how reliably a run goes on."""

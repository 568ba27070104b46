"""Operation tables → fitted calibrations, with their errors on held-out data."""

"""Operation tables → fitted calibrations, with their errors on what was not fitted."""

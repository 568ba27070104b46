"""Fits of calibrations to tables of measured operations, with errors on held-out data."""

"""Intervals around predictions, in which 90 % of the measured values of similar cases lay."""

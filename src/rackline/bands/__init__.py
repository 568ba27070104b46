"""Intervals around predictions that contained 90 % of the measured values of similar cases."""

"""Passes start at fixed intervals, like trains; a request that misses one waits for the next."""

from rackline.simulation.policies import Policy

POLICY = Policy(name="trains", interval_s=0.02, source="lecture C28 to C32: a batch departs every interval")

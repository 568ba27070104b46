"""A machine and an engine on it, measured: device, rates, a few passes, the fit, and points that were not fitted."""

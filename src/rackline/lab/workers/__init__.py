"""Scripts that run an engine under its own Python; only `worker` is imported by rackline itself."""

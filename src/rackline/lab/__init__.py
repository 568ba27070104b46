"""The lecture's mechanisms built small and measured; measuring a machine, an engine or a server.

One mechanism a file; each file has a function `run(setup)` that returns an `Experiment`. The files need JAX (extra
`lab`) and are imported on demand, after `start_jax` has prepared it.
"""

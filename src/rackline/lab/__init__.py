"""The lecture's mechanisms built small: each is run, and what comes out is compared with what the library predicts.

One mechanism a file; each file has a function `run(setup)` that returns an `Experiment`. The files need JAX (extra
`lab`) and are imported on demand, after `start_jax` has prepared it.
"""

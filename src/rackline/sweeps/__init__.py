"""Sweeps: many questions as one file, compiled to grids, run in chunks, read as tables.

From the bottom: `expression` (arithmetic of columns), `ranges` (values of one quantity), `file` (the sweep as data),
`space` (its points, in chunks), `levels` (what a quantity changes), `passes` (chunks of passes as arrays) and
`questions` (what is asked once per combination), `store` and `chunk` (shards), `workers` and `cluster` (who runs them),
`run`, then `read`, `optimum`, and the two questions `sweep` and `show`.
"""

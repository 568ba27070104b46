"""Sweeps: many questions as one file, run in chunks, read as tables.

From the bottom: `expression` (arithmetic of columns, values of one quantity), `file` (the sweep as data), `space` (its
points, in chunks, and what a quantity changes), `passes` (chunks of passes as arrays) and `questions` (what is asked
once per combination), `store` and `chunk` (shards), `workers` (who runs them), `run`, then `read`, `sensitivity` and
`optimum`, `shown` (tables and figures), and the two questions `sweep` and `show`.
"""

"""Compiles a workflow into a plan. Pure: it reads source files and nothing else, and has no clock.

`pipeline` is the way through it: a front end (`frontend`) reads the workflow into a `Spec` (`spec`); `ir.lower` turns
that into a System State Graph (`ir.graph`); the passes (`passes`) rewrite the graph; `emit` writes the `Plan`
(`plan`).

Importing this package loads nothing of the compiler: a plan runs without it.
"""

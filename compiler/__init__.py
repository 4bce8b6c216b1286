"""From a workflow to a System State Graph and a plan. Pure: no I/O, no clock.

Importing this package loads nothing of the compiler: a plan runs without it (`ramify.compiler.plan`).
"""

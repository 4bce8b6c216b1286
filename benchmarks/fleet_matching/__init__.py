"""Simulation of jobs that ask for several machines at once, for benchmarks/fleet.py."""

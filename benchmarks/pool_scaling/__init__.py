"""Simulation of pools of replicas under agent pipelines, for benchmarks/scaling.py."""

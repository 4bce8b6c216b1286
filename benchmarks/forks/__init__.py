"""The parts of benchmarks/fork.py: forks of worlds with and without processes, and operations of the store."""

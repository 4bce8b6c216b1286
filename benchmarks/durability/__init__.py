"""The parts of benchmarks/runtime.py: durable supersteps, reuse, whole runs, hit rates on recorded traces."""

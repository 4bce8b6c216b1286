"""The parts of benchmarks/compiler.py: compile time, and what each compiler pass saves when its plan runs."""

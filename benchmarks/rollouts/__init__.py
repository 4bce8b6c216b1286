"""The parts of benchmarks/worlds.py: projects with seeded bugs, images, the agent, the backends, the rows."""

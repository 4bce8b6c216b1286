"""Repairs small Python programs by search over copy-on-write worlds. Run it: `python -m examples.repair --help`."""

"""Complete programs, one folder each. Run one: `python -m examples.NAME --help`. `docs/examples/` explains them."""

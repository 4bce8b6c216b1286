"""Cohorts of applications (Auxo, thesis chapter 3), for benchmarks/cohorts.py; not in the product (decision 102)."""

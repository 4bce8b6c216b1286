"""Runs a plan: journal, reuse, recovery. Knows neither vLLM nor mount calls."""

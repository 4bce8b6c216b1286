"""The parts of benchmarks/serving.py: costs of policy and gateway, length bounds, and scheduling inside vLLM."""

"""What no scheduler can exceed: the LP bound of a workload, and on one slot the optimum itself."""

"""Confinement of worlds. Stdlib only, since the agent runs it; see `docs/security.md`."""

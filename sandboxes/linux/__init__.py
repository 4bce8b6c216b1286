"""What keeps a world inside its bounds. Stdlib only, for the agent runs it; see `docs/security.md`."""

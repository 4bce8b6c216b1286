"""Ramify's worlds behind the sandbox interfaces of other people's agent harnesses, and as an MCP server.

One module per package, named for it. Each needs that package and says so in its `ImportError`:

- `mini_swe_agent.WorldEnvironment`, `deepagents.WorldBackend`, `inspect_ai.WorldSandboxEnvironment`,
  `openai_agents.WorldSandboxClient`, `swe_rex.WorldDeployment`, `harbor.WorldEnvironment`,
  `nemo_gym.WorldProvider`, `verifiers.WorldRuntime`, `openenv.WorldProvider`,
  `openenv.WorldEnvironment`.
- `mcp_server.py`: worlds as tools of the Model Context Protocol (`ramify mcp`).

Beyond the interface of its package, each offers `snapshot`, `fork` and `restore`. Start at `mini_swe_agent.py`, the
shortest. What they share is in `world_access.py`: output as one stream, and files anywhere in the world.
"""

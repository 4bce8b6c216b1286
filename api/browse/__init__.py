"""The browsers: `tui` shows runs in the terminal, `web` on a local page. Both render `ramify.inspect`."""

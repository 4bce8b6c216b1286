"""The commands, one module for each topic. To add one, write it here and add its line to `ramify.cli.registry`
(docs/how-to/extend.md has an example).

Each command gets a `Home` (`pass_home`), reads runs through it, and prints with `ramify.cli.console`. With `--json`
it prints one JSON value, whose fields are documented in docs/reference/formats.md.
"""

"""Worlds as a library: sandboxes that can be forked, restored and merged, without a workflow and without a database.

Main types, in the order in which to read them:

- `World` (`world.py`): one live world. Its parts, each in a module `world_….py`: `WorldCommands`, `WorldFiles`,
  `WorldSnapshots`, `WorldEgress` (`world_network.py`).
- `WorldHome` (`home.py`): the open home: its snapshot store, its backend, and the names of its worlds and tags
  (`home_names.py`).
- `References` (`references.py`): names of worlds and tags of snapshots, one small file each.
- `SyncWorld` (`blocking.py`): the same as `World`, for code without an event loop.
- `SyncWorldHome` (`blocking_home.py`): an open home for many of them.

The package stands on `ramify.sandboxes` and `ramify.fork_engine`. It knows no workflows, no journal and no models.
"""

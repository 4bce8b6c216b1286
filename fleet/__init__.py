"""Runs on the nodes of a Ray cluster. Ray lists the nodes; each works in a home of its own. One database and one
bucket carry the runs between the nodes.

`Fleet` (module `fleet`) stores a run, as `Runtime` does, and has a node continue it (`run_host`). If the node dies,
another one continues the run where its journal ends. `FleetWorld` (`fleet_world`) is a world whose commands run on a
node (`world_host`). Only `ray_cluster` and `ray_connection` import Ray.
"""

"""The front ends: each reads what a user wrote into a `Spec`, and runs none of it.

`python` reads functions under `@workflow` and `@step`. `langgraph` reads graphs, and uses `python` for their nodes.
"""

"""The remote tier of a snapshot store: a bucket that carries snapshots between machines.

docs/reference/remote-tier.md defines what lies in a bucket.

`remote_store.RemoteStore` opens a bucket. `push` uploads snapshots, `pull` fetches one by its id, `collection`
deletes what no home names, `check` compares the bucket with its digests. Synchronous, as the store is: call it in
threads.
"""

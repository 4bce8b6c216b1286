"""`SimulatedTier`: the worker's side of vLLM's CPU tier, on a virtual clock.

The scheduler's side is vLLM's own `OffloadingConnector`: it says which blocks are copied to host memory and back, and
evicts what was used least recently. Here the copies only take time. Those to the engine follow each other; those from
it are over with their step, at no cost.
"""

from __future__ import annotations

from collections import deque
from typing import Any


class SimulatedTier:
    """Copies of one engine."""

    def __init__(self, copy_ms: float, block_size: int) -> None:
        self._block_s = copy_ms * block_size / 1000
        self._loads: deque[tuple[float, int, str]] = deque()  # when they are over, jobs, requests
        self._stores: list[int] = []
        self._free_at = 0.0
        self.loaded = 0  # blocks

    def submitted(self, metadata: Any, now: float) -> None:
        """A step begins, with these copies."""
        for job, load in metadata.load_jobs.items():
            blocks = len(load.dst_spec.block_ids)
            self._free_at = max(self._free_at, now) + blocks * self._block_s
            self._loads.append((self._free_at, job, load.req_id))
            self.loaded += blocks
        self._stores += metadata.store_jobs

    @property
    def next_at(self) -> float | None:
        """When the next copy to the engine is over; None if none is on its way."""
        return self._loads[0][0] if self._loads else None

    def finished(self, now: float) -> Any:
        """Return what the worker says at the end of a step."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
        from vllm.v1.outputs import KVConnectorOutput

        done, requests = dict.fromkeys(self._stores, 1), set[str]()
        self._stores = []
        while self._loads and self._loads[0][0] <= now:
            _, job, request = self._loads.popleft()
            done[job] = 1
            requests.add(request)
        meta = OffloadingWorkerMetadata(completed_jobs=done) if done else None
        return KVConnectorOutput(finished_recving=requests or None, kv_connector_worker_meta=meta)

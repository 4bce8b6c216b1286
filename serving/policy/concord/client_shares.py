"""Fair shares of the slots among clients: whose calls come first because their client holds less than its share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp

from ramify.serving.policy.concord.job import Job
from ramify.serving.policy.types import Finished

_MEMORY_S = 60.0  # over which what a client had is forgotten: staying away for longer gains nothing


class ClientUse:
    """How many tokens each client had lately."""

    def __init__(self) -> None:
        self._had: dict[str, tuple[float, float]] = {}  # tokens, and when that was

    def learn(self, done: Finished) -> None:
        client = done.view.client
        if client:
            had = self.of(client, done.at) + done.view.prompt_tokens + done.view.generated
            self._had[client] = had, done.at

    def of(self, client: str, now: float) -> float:
        tokens, at = self._had.get(client, (0.0, now))
        return tokens * exp(-max(0.0, now - at) / _MEMORY_S)


def with_client_shares(
    queue: Sequence[Job], held: Mapping[str, int], share: int, used: Callable[[str], float]
) -> list[Job]:
    """Return the queue with those jobs first by which each client comes to hold `share` slots.

    This is max-min fairness in slots: the first slot goes to the client that holds least and, of equals, had least
    lately. What a client does not ask for goes to the others, in the queue's order.

    Args:
        queue: the jobs in the policy's order.
        held: the slots that each client has now.
        share: how many slots a client is sure of.
        used: what a client had lately.
    """
    slots = dict(held)
    first, rest = list[tuple[int, float, int, Job]](), list[Job]()
    for place, job in enumerate(queue):
        client = job.view.client
        holds = slots.get(client, 0)
        if holds < share:
            slots[client] = holds + 1
            first.append((holds, used(client), place, job))
        else:
            rest.append(job)
    first.sort(key=lambda one: one[:3])
    return [job for *_, job in first] + rest


def in_their_places(
    queue: Sequence[Job], concerned: Callable[[Job], bool], change: Callable[[Sequence[Job]], list[Job]]
) -> list[Job]:
    """Reorder only the jobs that are concerned: together they keep the places that they have."""
    changed = iter(change([job for job in queue if concerned(job)]))
    return [next(changed) if concerned(job) else job for job in queue]

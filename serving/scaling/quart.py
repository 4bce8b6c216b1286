"""QUART's controller, with its published formulas corrected: correct by M/M/c and PID, then smooth by CV, within a
budget of replicas. `spread` and `dense` say on which server a pool's next replica starts.

Where the paper leaves something open: a pool's target is `target` times its service time; replicas that no correction
asks for are those with which GI/G/c keeps the target at the CV that Whitt's formula propagates; a pool is taken back
one replica at a time. Algorithm 1 calls μ_i a request rate where it computes replicas; this uses λ_i.

What is corrected:

- Equation 1 is not the M/M/c formula that its text names: at arrival rate .9, service rate 1 and one replica it
  gives 1.9, and the true time is 10. `sojourn_s` is the true one.
- Algorithm 1 prints e = T_target - T for the PID controller (equation 3), which is negative exactly when replicas
  must be added; here e = (T - T_target) / T_target, so that one set of gains fits pools of any speed. The paper
  gives neither gains nor limits. The error is clamped, since T is infinite for an overloaded pool, and the integral
  stands still while the output is at its limit.
- The smoother (§5.2) predicts CVs with an attention over the neighbours (equations 4 to 6), of which the paper gives
  neither the features nor the trained weights, and whose θ·CV_i is in every logit of a softmax over j, where it
  cancels. Algorithm 1 needs only the CV of the stage before: `departure_cv` propagates it.
- The paper leaves β of equation 7 open; `weight` is CV / (1 + CV): 0 for a stage without bursts, which then takes its
  neighbours' mean, and towards 1 for a bursty one, which keeps what it has.
- The CPU compensator (§5.3) adds cores for replicas that were taken back. Algorithm 1 returns within its loop, after
  the first stage; here each stage is looked at.

Placement (§6.2, equations 8 to 10): key stages are spread, so that each of their servers keeps room for more
replicas, which start there from the weights that the server's memory has. Other stages are packed, so that room stays
in one piece. The paper minimises KL(P ‖ Q) by gradient descent, where Q is uniform over the servers. What is
corrected:

- Q knows no capacity, so that a small server gets as many replicas as a large one. Here Q is each server's share of
  the room: its replicas of key stages and its free places. A server without a free place is never chosen.
- The minimum of equation 8 is P = Q, which needs no descent, and has fractions of replicas. Equation 10 does not
  project either: from a uniform P each step takes α from each server's share, and the shares no longer sum to 1.
  Here whole replicas go one by one to where each brings the divergence lowest. N·KL is Σ n·log(n/q) - N·log N, a sum
  of convex functions of the servers' counts, so that this greedy rule finds the minimum over whole replicas.
- Replicas that run are not moved: P starts from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, fsum, inf, log, sqrt
from typing import Protocol, runtime_checkable

from ramify.serving.errors import BadPool, NoRoom
from ramify.serving.scaling.pools import FutureCalls, KeyStages, PoolLoad, Scaling


@dataclass(frozen=True, slots=True)
class Server:
    """A server, as the next replica of one pool finds it. Raises BadPool."""

    free: int  # replicas that it has room for
    key: int = 0  # replicas of key stages on it
    loaded: bool = False  # its memory has the pool's weights

    def __post_init__(self) -> None:
        if self.free < 0 or self.key < 0:
            raise BadPool(f"a server has at least 0 free places and replicas, got {self.free} and {self.key}")


@runtime_checkable
class Placer(Protocol):
    """A controller that also says where replicas start."""

    def place(self, pool: str, servers: Sequence[Server], now: float) -> int:
        """The index of the server for one more replica. Raises NoRoom."""


def divergence(held: Sequence[int], room: Sequence[int]) -> float:
    """KL(P ‖ Q) of equation 8: P are the shares of the replicas `held` by server, Q those of `room`."""
    replicas, places = sum(held), sum(room)
    if any(n and not q for n, q in zip(held, room, strict=True)):
        return inf
    return fsum(n / replicas * log(n * places / (q * replicas)) for n, q in zip(held, room, strict=True) if n)


def spread(servers: Sequence[Server]) -> int:
    """The server on which one more replica of a key stage brings the divergence lowest; the first of equal ones.

    Servers whose memory has the weights come before all others (figure 5). Raises NoRoom.
    """
    open_ = _open(servers)
    held, room = [one.key for one in servers], [one.key + one.free for one in servers]

    def after(index: int) -> float:
        return divergence([n + (j == index) for j, n in enumerate(held)], room)

    return min([j for j in open_ if servers[j].loaded] or open_, key=after)


def dense(servers: Sequence[Server]) -> int:
    """The server with the fewest free places; the first of equal ones. Raises NoRoom."""
    return min(_open(servers), key=lambda j: servers[j].free)


def _open(servers: Sequence[Server]) -> list[int]:
    found = [j for j, one in enumerate(servers) if one.free]
    if not found:
        raise NoRoom(f"none of {len(servers)} servers has a free place: end a replica first, or add a server")
    return found


def erlang_c(servers: int, load: float) -> float:
    """The probability that a call waits, in M/M/c. `load`: arrival rate over service rate. 1 from `servers` on.

    By the recursion of Erlang's B, which neither overflows nor cancels. Raises BadPool.
    """
    if servers < 1 or not load >= 0:
        raise BadPool(f"Erlang's C needs a server and a load of at least 0, got {servers} and {load}")
    if load >= servers:
        return 1.0
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    share = load / servers
    return blocked / (1 - share + share * blocked)


def sojourn_s(arrival_rate: float, service_rate: float, servers: int) -> float:
    """Mean seconds in an M/M/c queue and its service; infinite where work comes faster than it is done."""
    if service_rate <= 0:
        raise BadPool(f"a replica's service rate is above 0, got {service_rate}")
    room = servers * service_rate - arrival_rate
    if room <= 0:
        return inf
    return erlang_c(servers, arrival_rate / service_rate) / room + 1 / service_rate


def bursty_sojourn_s(
    arrival_rate: float, service_rate: float, servers: int, cv: float, service_cv: float = 1.0
) -> float:
    """The same for GI/G/c, by Allen and Cunneen: the wait of M/M/c times (c_a² + c_s²) / 2."""
    wait = sojourn_s(arrival_rate, service_rate, servers) - 1 / service_rate
    return wait * (cv**2 + service_cv**2) / 2 + 1 / service_rate if wait else 1 / service_rate


def replicas_for(
    arrival_rate: float, service_rate: float, target_s: float, *, cv: float = 1.0, most: int = 1024
) -> int:
    """The fewest replicas with a mean time in queue and service of at most `target_s`; `most` if there are none."""
    fewest = max(1, int(arrival_rate / service_rate))
    for servers in range(fewest, most):
        if bursty_sojourn_s(arrival_rate, service_rate, servers, cv) <= target_s:
            return servers
    return most


def departure_cv(arrival_cv: float, utilisation: float, servers: int, service_cv: float = 1.0) -> float:
    """The CV of the times between departures of GI/G/m (Whitt 1983, equation 39).

    c_d² = 1 + (1 - ρ²)(c_a² - 1) + ρ²/√m · (c_s² - 1)
    """
    rho = min(1.0, max(0.0, utilisation))
    squared = 1 + (1 - rho**2) * (arrival_cv**2 - 1) + rho**2 / sqrt(max(1, servers)) * (service_cv**2 - 1)
    return sqrt(max(0.0, squared))


_MOST_ERROR = 4.0  # five times the target or more counts alike


@dataclass(frozen=True, slots=True)
class Gains:
    """Replicas for each unit of relative error, of error-seconds, and of error per second."""

    proportional: float = 1.0
    integral: float = 0.1
    derivative: float = 0.1


class PID:
    """One pool's controller. Call `step` with times that do not go back."""

    def __init__(self, gains: Gains = Gains(), *, most: float = 8.0) -> None:
        self._gains, self._most = gains, most
        self._sum = 0.0
        self._last: tuple[float, float] | None = None  # time, error

    def step(self, sojourn_s: float, target_s: float, now: float) -> float:
        """The change in replicas, within ±`most`. Raises BadPool for a target of 0, or a time before the last."""
        if not target_s > 0:
            raise BadPool(f"a pool's target time is above 0 s, got {target_s}")
        error = min(_MOST_ERROR, (sojourn_s - target_s) / target_s)
        since, before = self._last or (now, error)
        if now < since:
            raise BadPool(f"a PID controller was asked at {now}, before its last step at {since}")
        took = now - since
        slope = (error - before) / took if took else 0.0
        total = self._sum + error * took
        out = self._gains.proportional * error + self._gains.integral * total + self._gains.derivative * slope
        if abs(out) <= self._most or abs(total) < abs(self._sum):
            self._sum = total
        self._last = now, error
        return max(-self._most, min(self._most, out))


def weight(cv: float) -> float:
    """β of equation 7."""
    return cv / (1 + cv)


def neighbours(index: int, count: int) -> tuple[int, ...]:
    """The stages before and after one of a pipeline."""
    return tuple(j for j in (index - 1, index + 1) if 0 <= j < count)


def smoothed(wanted: Sequence[float], cvs: Sequence[float]) -> list[float]:
    """Equation 7 over a pipeline: β(CV_i)·y_i + (1 - β(CV_i))·(mean of the neighbours)."""
    out = []
    for i, (own, cv) in enumerate(zip(wanted, cvs, strict=True)):
        beside = neighbours(i, len(wanted))
        mean = sum(wanted[j] for j in beside) / len(beside) if beside else own
        out.append(weight(cv) * own + (1 - weight(cv)) * mean)
    return out


@dataclass(frozen=True, slots=True)
class CpuProfile:
    """Service seconds by cores, as measured offline. Raises BadPool for fewer than two different counts."""

    cores: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.cores) != len(self.seconds) or len(set(self.cores)) < 2 or min(self.cores) < 1:
            raise BadPool(f"a CPU profile needs times for two numbers of cores, got {self.cores}: {self.seconds}")

    def line(self) -> tuple[float, float]:
        """Intercept and slope of the least-squares line of seconds over 1 / cores: in that Amdahl's law is linear."""
        xs = [1 / c for c in self.cores]
        x, y = sum(xs) / len(xs), sum(self.seconds) / len(xs)
        slope = sum((a - x) * (b - y) for a, b in zip(xs, self.seconds, strict=True)) / sum((a - x) ** 2 for a in xs)
        return y - slope * x, slope


@dataclass(frozen=True, slots=True)
class Compensation:
    """Cores for each replica, and whether even the most are too few, so that a replica must be added."""

    cores: int
    enough: bool


def compensate(profile: CpuProfile, service_s: float, most: int) -> Compensation:
    """The fewest cores with which a call takes at most `service_s`.

    Algorithm 1 returns inside its loop over stages, after the first one; callers ask here once for each stage.
    """
    fixed, slope = profile.line()
    for cores in range(1, most + 1):
        if fixed + slope / cores <= service_s:
            return Compensation(cores, True)
    return Compensation(most, False)


def within_budget(wanted: Mapping[str, int], least: Mapping[str, int], budget: int) -> dict[str, int]:
    """What each pool gets of `budget` replicas: its least, and of the rest a share of what it wants beyond that.

    Shares are proportional, and whole by largest remainder. Raises NoRoom if the budget is below all the leasts.
    """
    floor = sum(least.values())
    if floor > budget:
        raise NoRoom(f"the pools need at least {floor} replicas, and there is room for {budget}: lower their least")
    beyond = {name: max(0, count - least[name]) for name, count in wanted.items()}
    room, asked = budget - floor, sum(beyond.values())
    if asked <= room:
        return {name: least[name] + more for name, more in beyond.items()}
    exact = {name: more * room / asked for name, more in beyond.items()}
    given = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (given[name] - exact[name], name))
    for name in by_remainder[: room - sum(given.values())]:
        given[name] += 1
    return {name: least[name] + more for name, more in given.items()}


class Quart:
    """Scales the stages that hold a pipeline back. It looks at the past only.

    budget: replicas of all pools together. target: of the time in a pool, in its service times.
    profiles, most_cores: service times by cores, for pools whose replicas get more cores in place of replicas.
    """

    def __init__(
        self,
        budget: int,
        *,
        target: float = 1.5,
        gains: Gains | None = None,
        profiles: Mapping[str, CpuProfile] | None = None,
        most_cores: int = 1,
    ) -> None:
        self._budget, self._target, self._gains = budget, target, gains or Gains()
        self._profiles, self._most_cores = dict(profiles or {}), most_cores
        self._pids: dict[str, PID] = {}
        self._keys = KeyStages()

    def decide(self, pools: Sequence[PoolLoad], future: Sequence[FutureCalls], now: float) -> Scaling:
        corrected = {pool.name: self._corrected(pool, now) for pool in pools}
        wanted, cpus = self._smoothed(pools, corrected)
        least = {pool.name: pool.limits.least for pool in pools}
        return Scaling(within_budget(wanted, least, self._budget), self._keys.list(now), cpus or None)

    def place(self, pool: str, servers: Sequence[Server], now: float) -> int:
        """The server on which a pool's next replica starts: key stages are spread, others packed (§6.2)."""
        return spread(servers) if pool in self._keys.list(now) else dense(servers)

    def _corrected(self, pool: PoolLoad, now: float) -> float:
        """r' of the corrector (equations 1 to 3); a pool within its target keeps its replicas."""
        target_s = self._target / pool.service_rate
        took_s = sojourn_s(pool.arrival_rate, pool.service_rate, max(1, pool.replicas)) + (
            pool.queue / (pool.service_rate * max(1, pool.replicas))  # the delayed feedback: what waits now
        )
        pid = self._pids.setdefault(pool.name, PID(self._gains))
        change = pid.step(took_s, target_s, now)
        if took_s <= target_s or change <= 0:
            return pool.replicas
        self._keys.scaled_up(pool.name, now)
        return pool.replicas + ceil(change)

    def _smoothed(
        self, pools: Sequence[PoolLoad], corrected: Mapping[str, float]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Take back what the propagated CV does not need (equation 7), never below the least."""
        cvs: list[float] = []
        for pool in pools:
            cvs.append(pool.cv)
            if len(cvs) > 1:
                before, busy = pools[len(cvs) - 2], pools[len(cvs) - 2].arrival_rate
                rho = busy / (before.service_rate * max(1, before.replicas))
                cvs[-1] = departure_cv(cvs[-2], rho, max(1, before.replicas))
        needs = [self._needs(pool, cv) for pool, cv in zip(pools, cvs, strict=True)]
        asked = [ceil(corrected[pool.name]) for pool in pools]
        grows = [ask > pool.replicas for ask, pool in zip(asked, pools, strict=True)]
        wanted = [ask if grow else need for ask, grow, need in zip(asked, grows, needs, strict=True)]
        out: dict[str, int] = {}
        cpus: dict[str, int] = {}
        for i, (pool, mean) in enumerate(zip(pools, smoothed(wanted, cvs), strict=True)):
            want = asked[i] if grows[i] else max(pool.replicas - 1, min(pool.replicas, max(needs[i], ceil(mean))))
            if want < pool.replicas and pool.name in self._profiles:
                found = compensate(self._profiles[pool.name], 1 / pool.service_rate, self._most_cores)
                cpus[pool.name] = found.cores
                want = want if found.enough else pool.replicas
            out[pool.name] = pool.limits.within(want)
        return out, cpus

    def _needs(self, pool: PoolLoad, cv: float) -> int:
        """The replicas that the rate and its burstiness need."""
        target_s = self._target / pool.service_rate
        return replicas_for(pool.arrival_rate, pool.service_rate, target_s, cv=cv, most=max(1, pool.limits.most))

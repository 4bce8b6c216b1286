"""How the prompts of several clients are kept apart in an engine: how long a prompt takes, and `cached_tokens`, would
tell a client what others have sent.

An engine at a URL says by its list of models what it is. vLLM, SGLang and other Ramify gateways take a salt;
llama.cpp can answer a call without its cache. Of any other engine the gateway knows no way.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Isolation(StrEnum):
    SALT = "salt"  # it finds only what was read under the same `cache_salt`
    NO_CACHE = "no_cache"  # `cache_prompt` false
    NONE = "none"


_BY_OWNER = {"vllm": Isolation.SALT, "sglang": Isolation.SALT, "llamacpp": Isolation.NO_CACHE}


def isolation_of(models: Mapping[str, object], *, gateway: bool) -> Isolation:
    """What an engine can do, by its list of models. `gateway`: it is a Ramify gateway."""
    if gateway:
        return Isolation.SALT
    data = models.get("data")
    owners = [one.get("owned_by") for one in data if isinstance(one, Mapping)] if isinstance(data, list) else []
    return next((_BY_OWNER[one] for one in owners if isinstance(one, str) and one in _BY_OWNER), Isolation.NONE)


def with_own_cache(body: Mapping[str, object], isolation: Isolation, client: str) -> dict[str, object]:
    """The body, so that the engine finds only what this client's calls have left in its cache. `client`: empty where
    there are not several."""
    own = dict(body)
    if not client or isolation is Isolation.NONE:
        return own
    if isolation is Isolation.NO_CACHE:
        return {**own, "cache_prompt": False}
    salt = own.get("cache_salt")
    if isinstance(salt, list):  # SGLang: one for each of several prompts
        own["cache_salt"] = [client if one is None else one for one in salt]
    elif not isinstance(salt, str):
        own["cache_salt"] = client
    return own

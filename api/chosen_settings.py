"""Which sandbox, server and model a `Runtime` names, and with which a run is resumed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ramify.resources import without_secrets
from ramify.runtime.records import Settings
from ramify.serving.client import LLMClient


@dataclass(frozen=True, slots=True)
class ChosenSettings:
    """`new`: the settings of new runs. `sandbox`: as named, None if none was. `named_url`: the server's address as
    named by an argument, and not by the environment, without secrets."""

    new: Settings
    sandbox: str | None
    named_url: str | None

    @classmethod
    def of(
        cls, sandbox: str | None, base_url: str | None, env_url: str | None, model: str | None, llm: LLMClient | None
    ) -> ChosenSettings:
        """Choose from a Runtime's arguments and the environment's address."""
        address = base_url or env_url
        whom = (None, None) if llm is None else getattr(llm, "whom", ("", None))
        kept = None if address is None else without_secrets(address)
        named = None if base_url is None else without_secrets(base_url)
        return cls(Settings(sandbox or "namespaces", kept, model, *whom), sandbox, named)

    def to_resume(self, began: Settings) -> Settings:
        """The settings to resume a run with: those it was started with, unless this runtime names others.

        A run that was started with a client of its program, and is resumed without it, asks the same model of the
        same server. The address in the environment is used only by runs that named none.
        """
        here = self.new
        sandbox = self.sandbox or began.sandbox
        if began.client_url is None or here.client_url is not None:
            base_url, model = here.base_url or began.base_url, here.model or began.model
            return replace(here, sandbox=sandbox, base_url=base_url, model=model)
        base_url = self.named_url or began.client_url or None
        model = here.model or began.client_model
        return Settings(sandbox, base_url, model, client_url="" if base_url is None else None)

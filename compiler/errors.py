"""The errors of the compiler.

CompileError            a workflow cannot be compiled: what is wrong, where, and how to correct it
├── SourceError         the source text of a function is not available, or is not that of the running code
├── WorkflowError       the workflow is written in a way that cannot work
├── VerifyError         a System State Graph breaks a rule of the verifier
└── TextError           the text of a System State Graph cannot be parsed; only failures that 0.1.0 stored are of it
"""

from __future__ import annotations


class CompileError(Exception):
    """A workflow cannot be compiled.

    Attributes:
        what: What is wrong.
        where: `file:line`, or the name of a function, a node or a block.
        mend: How to correct it.
    """

    def __init__(self, what: str, *, where: str, mend: str) -> None:
        super().__init__(f"{where}: {what}; {mend}")
        self.what, self.where, self.mend = what, where, mend


class SourceError(CompileError):
    """The source text of a function is not available, or is not that of the running code."""


class WorkflowError(CompileError):
    """The workflow is written in a way that cannot work."""


class VerifyError(CompileError):
    """A System State Graph breaks a rule. `rule` is its name in `ramify.compiler.ir.verify.RULES`."""

    def __init__(self, rule: str, what: str, *, where: str, mend: str) -> None:
        super().__init__(f"{what} [{rule}]", where=where, mend=mend)
        self.rule = rule


class TextError(CompileError):
    """The text of a System State Graph cannot be parsed. Stored failures of earlier versions name it."""

"""What the compiler refuses.

CompileError            a workflow that cannot be compiled: what, where, and the mend
├── SourceError         the source text of a function is not to be had, or is not what runs
├── WorkflowError       the workflow is written in a way that cannot mean what it says
├── VerifyError         a System State Graph breaks a rule of the verifier
└── TextError           a textual System State Graph that cannot be read
"""

from __future__ import annotations


class CompileError(Exception):
    """`where` is `file:line`, or the name of a function, a node or a block."""

    def __init__(self, what: str, *, where: str, mend: str) -> None:
        super().__init__(f"{where}: {what}; {mend}")
        self.what, self.where, self.mend = what, where, mend


class SourceError(CompileError):
    pass


class WorkflowError(CompileError):
    pass


class VerifyError(CompileError):
    """`rule` is the rule's name in `ramify.compiler.ir.verify.RULES`."""

    def __init__(self, rule: str, what: str, *, where: str, mend: str) -> None:
        super().__init__(f"{what} [{rule}]", where=where, mend=mend)
        self.rule = rule


class TextError(CompileError):
    pass

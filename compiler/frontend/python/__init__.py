"""Reads Python code: workflows under `@workflow`, their steps, and the functions of LangGraph nodes.

Start at `workflow_reader.read_workflow`, which returns a `Spec`. `sources` finds syntax trees, `statements` and
`calls` read a function's body, `code_parts` computes the digests by which a resume knows changed code, and
`step_checks` refuses code that cannot work.
"""

"""Concord, the default policy. Start at `policy.Concord`; `options` has its options.

A decision goes: `job_index` finds what changed and brings the jobs up to date (`jobs` computes them and
keeps them sorted), `feasibility` says whether all fit and which are kept, `displacement` which running
ones make room.
"""

"""The request analyzer (thesis §4.1): how long answers will be, and what is still to come of a compound request.

A process of its own, off the hot path (`process`); callers reach it by `client`. Nothing here is needed for
scheduling to go on: a call carries its sketch with it, and without one its limit is the bound. No text is kept, in
memory beyond one prediction or on disk at all: `features` hashes it at once.
"""

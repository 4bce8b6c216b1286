"""Runs as one local page: `ramify browse --web`.

`guard` decides who is let in, `app` has the routes, `reader` keeps what was read of each run, `views` makes the
answers, `wire` is their shapes; `static` is the page itself, hand-written, without a build step.
"""

"""Runs on one local page: `ramify browse --web`.

`server` listens, `guard` decides which requests are allowed, `app` has the routes, `run_cache` keeps the histories
that were read, `views` makes the answers, and `responses` defines their shapes. `static` is the page itself:
hand-written, without a build step.
"""

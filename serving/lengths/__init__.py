"""The request analyzer (thesis §4.1): how long answers will be, and which stages of a workflow are still to come.

It is a process of its own (`process`), off the hot path, and the gateway reaches it by `client.AnalyzerClient`.
Scheduling does not depend on it: a call carries its length sketch, and without one its token limit is the bound. No
text is kept: in memory it lives for one prediction, on disk never, because `features` hashes it at once.

`types` holds questions and answers. `length_model` (a quantile forest with conformal bounds) predicts lengths and
`learner` fits it to traffic; `pattern_library` matches workflows against past ones.
"""

"""Search over an agent's turns: fork its whole state at any turn, try several next turns, and keep the best.

Main types, in the order in which to read them:

- `types.py`: `Environment` (what can be stepped and forked), `Turn`, `StepResult`, the result, and the errors.
- `search` (`search.py`): the one function, exported as `ramify.search`.
- `BestOf`, `Beam`, `MCTS` (`search.py`): which turns a search tries next.
- `CommandTurns` (`command_turns.py`): a `ramify.World` as an environment whose actions are commands.

`expansion.py` does the work that the methods share: it forks, steps, scores, leaves out states that were seen, and
closes what is not needed. The package knows no agent framework: adapters are in `ramify.integrations`.
"""

"""`ramify browse`: a run in the terminal, while it goes on and afterwards.

- app.py: the application, its layout and keys. Start here.
- branch_graph.py: the rows of the branch graph: checkpoints, and what a branch did after its last one
- tabs.py, activity_tabs.py: the lines of each tab, and what the tabs describe: a node or its whole run
- styled_lines.py: styled text, and the widget that shows it; only visible lines are drawn
- search.py: search in the branches and in the details
- run_actions.py, dialogs.py: fork and resume a run, in a process of its own; the dialogs

Only a fork or a resume that the user asks for writes anything. The lines are pure functions of `ramify.inspect`, so
they are tested without a terminal, and agree with the web page and the command line.
"""

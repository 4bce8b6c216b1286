"""`ramify browse`: a run in the terminal, while it goes on and afterwards.

lines.py     text with looks: what every view is made of
view.py      the one widget that shows lines; only those on the screen are ever drawn
nodes.py     the rows of the branch graph: checkpoints, and what was done after the last of a branch
details.py   the tabs, and which lines each has for a node
facts.py, files.py, timeline.py, calls.py, shell.py, effects.py   the lines of one tab each
search.py    what a text is looked for in
resuming.py  a resume in a process of its own, and what it said
dialogs.py   the runs, a question, an answer, the keys
app.py       the application

Nothing is written but by a fork or a resume that the user asked for. The lines are pure functions of the read model
(`ramify.browse`), so what is shown is tested without a terminal, and the page and the command line agree with it.
"""

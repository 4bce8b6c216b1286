"""Looking at runs: one read model, and the faces that show it (the command line, the terminal browser, the page).

`history` reads a run's rows into branches and moments; nothing here writes.
"""

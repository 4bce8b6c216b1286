"""The command line.

`start` is the entry point of the program, `main` the command group, `registry` the table of the commands in
`commands`. The commands share `console` (printing), `errors` (messages and exit statuses), `completion` (Tab),
`targets` (the user's code) and `progress` (a run while it goes on).
"""

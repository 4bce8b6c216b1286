"""The compiler's intermediate representation, the System State Graph.

`graph` has the data types, the signature of each operation, and the text of a graph. `lower` makes a graph from a
`Spec`, `verify` checks its rules, and `analysis` and `rewrite` are what passes use. Start at `graph`.
"""

"""The compiler's intermediate representation, the System State Graph.

`graph` has the data types and the signature of each operation. `lower` makes a graph from a `Spec`, `verify`
checks its rules, `text` prints it, and `analysis` and `rewrite` are what passes use. Start at `graph`.
"""

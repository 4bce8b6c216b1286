"""Plain Linux, without any notion of worlds: system calls and what is built on them. Imports only the stdlib."""

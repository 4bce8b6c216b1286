"""The migrations, one revision per file. A released migration is never edited. To change the tables, add a file here,
its name to `address.REVISIONS`, and the same change to `tables.py`."""

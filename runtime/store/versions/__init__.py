"""What brought the tables here, one revision a file. One that was released is never edited: what changes the tables
is one more file, its name in `revisions.REVISIONS`, and the same change in `tables.py`."""

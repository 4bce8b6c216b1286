"""Research over local documents: notes are written in forks, and those that found something are merged."""

"""Tree of thoughts on the game of 24: the most promising steps are tried in forks, level by level."""

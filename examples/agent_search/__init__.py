"""mini-swe-agent in forks: its messages and its world branch at every turn, and a search keeps the best."""

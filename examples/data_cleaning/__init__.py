"""Data cleaning: recipes are tried on a messy table in forks, and what passes its checks is merged."""

"""Data cleaning: recipes are tried on a messy table in forks, and those that pass the checks are merged."""

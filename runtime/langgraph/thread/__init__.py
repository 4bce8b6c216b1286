"""Thread."""

"""Definitions in plain Python of what the compiled modules compute; for tests only."""

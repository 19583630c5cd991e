"""Tiny models and stand-ins shared by the tests."""

"""Parity of the compiled modules with `tests.oracle`, and what they refuse."""

"""Comparison with transformers' own Gemma 4 assistants; see ``make test-oracle``."""

"""Drafters with weights of their own, made for one target."""

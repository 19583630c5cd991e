"""Checkpoints, conversion and everything that runs on the device."""

"""Measuring: the benchmark protocol, records, reports and plots. Needs the extra ``bench``."""

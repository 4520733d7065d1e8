"""Benchmarks that compare Pinwarden with a baseline in the same run.

Results are ratios, because absolute times are not comparable between runs on a shared machine.
"""

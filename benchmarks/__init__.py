"""Comparisons with floors and peers, in one run, as ratios. Absolute times mean nothing on a shared machine."""

"""The gate: is everything still as it was approved?"""

"""Readers for tarballs, ZIP files and MCPB bundles from untrusted sources.

Each format has one reader, used by the code that checks an archive and by the code that unpacks it.
"""

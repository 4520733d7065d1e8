"""Bytes and what comes of them: closures, evidence, built environments, started servers."""

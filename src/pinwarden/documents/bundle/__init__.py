"""Signed, content-addressed bundles: the documents of the verifier rulebook (v0.1.1) and of its log."""

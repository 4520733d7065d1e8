"""Signatures and certificates, checked here."""

"""Bundles: packed, signed, attested, verified and accepted."""

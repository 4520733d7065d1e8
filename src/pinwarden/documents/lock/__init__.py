"""The lockfile: its entries, seal, extension, signature, and the draft it converts to."""

"""The registry's tables: versions, publishers and the transparency log."""

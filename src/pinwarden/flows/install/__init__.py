"""Installing from a registry of bundles: whom to trust, what to check in which order, and what is written down."""

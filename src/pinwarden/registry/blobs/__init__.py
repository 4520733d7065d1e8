"""Where a registry keeps archives: a folder or an OCI registry, by CID."""

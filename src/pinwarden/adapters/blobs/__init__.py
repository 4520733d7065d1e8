"""Where a registry keeps archives: in a folder, or in any OCI registry."""

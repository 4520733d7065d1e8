"""A bundle as one archive, in both media types, and as files on disk or in an OCI registry."""

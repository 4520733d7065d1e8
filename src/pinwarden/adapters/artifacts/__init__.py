"""One file per kind of artifact, each with ``facts(…)``: fetch the bytes, hash them here, say what was claimed."""

"""Container images by name and content: references, indexes, manifests, and how a registry asks who one is."""

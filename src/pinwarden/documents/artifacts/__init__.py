"""What is known about packages, bundles and images, and about where they come from."""

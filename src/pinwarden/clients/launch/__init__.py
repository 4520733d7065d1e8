"""What a command line runs: which package, image, program or address, and whether its release is pinned."""

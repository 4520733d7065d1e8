"""What changed between two surfaces, and how much it matters."""

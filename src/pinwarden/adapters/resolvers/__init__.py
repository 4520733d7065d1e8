"""Programs that work out which versions a package needs. They are asked; what they answer is verified elsewhere."""

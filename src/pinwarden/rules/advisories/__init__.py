"""Text that reads like an attack on the model."""

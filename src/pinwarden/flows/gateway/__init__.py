"""Opening the gateway: what is approved, where events go, what waits for review."""

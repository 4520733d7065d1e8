"""Built environments: verified archives, what was unpacked from them, and how that is started."""

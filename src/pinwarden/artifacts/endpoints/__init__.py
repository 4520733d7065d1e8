"""Which registry a package client is set to, with the credential for it, found the way that client finds it."""

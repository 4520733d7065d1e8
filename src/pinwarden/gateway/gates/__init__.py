"""What the gateway decides about lists, uses, server requests, results and the server itself. Pure."""

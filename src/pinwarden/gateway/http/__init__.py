"""The gateway over Streamable HTTP: a server for clients, and connections to servers."""

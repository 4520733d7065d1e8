"""HTTP to untrusted hosts.

``network_guard.py`` decides which addresses may be contacted, ``transport.py`` how: TLS, proxies, connecting to the
checked address, redirects. Two clients use both: ``fetch.py`` downloads documents and files from registries, with
retries and hashing; ``http_client.py`` talks to one MCP server, with one deadline for the complete probe.
"""

"""HTTP to untrusted hosts.

``connections.py`` decides which addresses may be contacted and connects to them: TLS, proxies, redirects. Two clients
use it: ``fetch.py`` downloads documents and files from registries, with
retries and hashing; ``http_client.py`` talks to one MCP server, with one deadline for the complete probe.
"""

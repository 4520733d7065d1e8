"""HTTP to untrusted hosts.

``connections.py`` decides which addresses may be contacted and connects to them: TLS, proxies, redirects. Three clients
use it: ``fetch.py`` downloads documents and files from registries, with retries and hashing; ``http_client.py`` talks
to one MCP server, with one deadline for the complete probe; ``gateway/http/upstream_pool.py`` relays to MCP servers on
an event loop.
"""

"""HTTP for hosts that are not trusted: address checks, proxies, TLS, limits and redirects."""

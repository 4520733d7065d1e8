"""Who is calling: access tokens of clients, logins of people, and tokens for remote servers.

Start with ``issuer.py``: an OpenID provider or OAuth authorization server, with its metadata and keys.
``signed_token.py`` verifies a JWT with these keys; ``access_tokens.py`` checks the tokens that clients send to the
gateway, and ``code_flow.py`` logs people in. ``settings.py`` reads the table ``[identity]`` of ``pinwarden.toml``.

For remote servers, ``remote_tokens.py`` returns a valid token of a person. ``remote_flow.py`` gets it, as an OAuth
client, ``protected_resource.py`` asks the server where, and ``grants.py`` keeps it, encrypted with ``grant_key.py``.

Pure: ``access_tokens``, ``remote_settings``, ``settings``, ``signed_token``. The package imports only ``core`` and
``system``, and PyJWT. Nothing here is imported by ``run`` or ``ci``, unless the user configured an issuer or connected
a remote server.
"""

"""Who is calling: access tokens of clients, logins of people, and tokens for remote servers.

Start with ``issuer.py``: an OpenID provider or OAuth authorization server that the operator trusts, with its metadata
and keys. ``signed_token.py`` verifies a JWT with these keys; ``access_tokens.py`` checks the tokens that clients send
to the gateway, and ``code_flow.py`` logs people in. ``settings.py`` reads the table ``[identity]`` of
``pinwarden.toml``.

Pure: ``access_tokens``, ``settings``, ``signed_token``. The package imports only ``core`` and ``system``, and PyJWT.
Nothing here is imported by ``run`` or ``ci``, unless the user configured an issuer.
"""

"""A server of the Python SDK, to be packed with the packages it needs."""

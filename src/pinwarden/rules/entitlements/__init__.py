"""What a server's handlers can do, read from its Python source without running any of it.

``entitlements_of`` follows each handler through the server's own modules and says which of them touch files, the
network, other programs, cryptography, code made at run time, the environment or native code, where, and by which way.
"""

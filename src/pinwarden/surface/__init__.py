"""The surface of a server: the tools, prompts, resources and instructions that it sends to the model.

Start with ``surface.py`` (the model). ``probe/`` reads it from a live server, ``drift/`` compares two surfaces (start
with ``compare.py`` and ``changes.py``), and ``scan/`` looks for signs of an attack (start with ``scan.py``).
``interop.py`` computes the digests and advisories that other lock tools would compute.

``drift/``, ``scan/`` and the models are pure; ``probe/`` starts processes and opens connections. The package
imports only ``system`` and ``core``, and must not know about locks or clients.
"""

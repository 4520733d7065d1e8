"""What a server tells the model: tools, prompts, resources and instructions.

Start with ``surface.py`` (the model). ``probe/`` asks a live server, ``drift/`` compares two surfaces (start with
``compare.py`` and ``changes.py``), and ``scan/`` looks for signs of an attack (start with ``scan.py`` and ``cues.py``).
``interop.py`` computes digests and advisories of other tools.

``drift/``, ``scan/`` and the models are pure; ``probe/`` starts processes and opens connections. Imports ``system`` and
``core``; must not know about locks or clients.
"""

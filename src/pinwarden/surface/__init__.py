"""What a server tells the model: tools, prompts, resources and instructions.

Start with ``surface.py`` (the model). ``probe/`` asks a live server, ``drift/`` compares two surfaces, ``scan/`` looks
for signs of an attack. ``drift/``, ``scan/`` and the models are pure; ``probe/`` starts processes and opens
connections. Imports ``system`` and ``core``; knows nothing of locks or clients.
"""

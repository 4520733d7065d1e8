"""The story of one rug pull, played with real commands: ``pinwarden demo``.

Start with ``story.py``, which has the chapters in order. ``stage.py`` runs their commands in a temporary folder and
prints what matters of their output. ``services.py`` has what the commands talk to on loopback: a package index and a
remote server. ``notes_server.py`` is the program in the package that the index serves.

Nothing outside the temporary folder is changed, and only addresses on this machine are contacted. Only the command line
imports this package. It imports ``core`` alone, because it runs Pinwarden as a user does: as a program.
"""

"""The command line: parse arguments, call a package, print its report.

Start with ``main.py`` (every command) and ``dispatch.py`` (errors and exit codes). ``commands/`` has one module per
command, ``render/`` one per output format. stdout is the answer; stderr is for errors, hints and progress.
"""

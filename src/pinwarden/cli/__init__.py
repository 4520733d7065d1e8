"""The command line: parse arguments, call a package, print its report.

Start with ``commands/__init__.py``, the table of all commands, and ``main.py``, which runs one and turns errors into
exit codes. ``commands/`` has one module per family of commands; ``*_arguments.py`` are the options that
families share. ``render/`` has one module per output format. Results go to stdout; errors, hints and progress to
stderr.

Only ``__main__.py`` and ``pytest_plugin.py`` import this package. Imports that are not needed to parse the arguments
belong inside the functions: a test watches what ``--help`` and ``ci`` load.
"""

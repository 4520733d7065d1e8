"""One module per output format, with the functions ``render`` and ``render_error``. ``output.py`` chooses one."""

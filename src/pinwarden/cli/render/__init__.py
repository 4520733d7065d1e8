"""One module per output format. ``output.py`` chooses it and calls ``render``, ``render_error`` or ``render_text``.

``board.py``, ``schema_text.py`` and ``surface_text.py`` render parts of the text output.
"""

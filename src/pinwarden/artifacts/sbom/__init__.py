"""Builds SBOMs of a lock: ``contents.py`` collects the contents, ``cyclonedx.py`` and ``spdx.py`` write them. Pure."""

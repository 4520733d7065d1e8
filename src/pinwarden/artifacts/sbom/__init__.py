"""SBOMs of a lock: ``bill.py`` collects the contents, ``cyclonedx.py`` and ``spdx.py`` write them. Pure."""

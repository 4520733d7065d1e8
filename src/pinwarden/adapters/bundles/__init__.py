"""The files of bundles: read from a folder, put into archives, and taken out of them safely."""

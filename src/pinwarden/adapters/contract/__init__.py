"""The author's server and the author's files."""

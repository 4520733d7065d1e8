"""The author's lock: what a server promises, tool by tool, and the file that pins it."""

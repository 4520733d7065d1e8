"""Client configurations: which clients there are, and how their files are read and edited."""

"""npm and uv as resolvers: they write a lockfile for one exact package and install nothing."""

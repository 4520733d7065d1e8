"""The outside world, one file per thing outside. Foreign errors stop here."""

"""Pure functions over bytes and values: no clock, environment, randomness or I/O."""

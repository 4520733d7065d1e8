"""JSON Schemas of the output of each command with --format json, one module per topic."""

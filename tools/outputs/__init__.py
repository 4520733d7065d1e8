"""JSON Schemas of what each command prints under --format json: a file for what belongs together."""

"""One module per command: ``configure(parser)`` names its arguments, ``run(args)`` does it."""

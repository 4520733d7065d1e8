"""One module per command: ``configure(parser)`` declares the arguments, ``run(args)`` does the work."""

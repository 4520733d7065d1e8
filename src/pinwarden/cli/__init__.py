"""The command line: arguments in, a report out. stdout is data, stderr is everything else."""

"""Pure judgement: documents in, verdict out. The time, where it matters, is an argument."""

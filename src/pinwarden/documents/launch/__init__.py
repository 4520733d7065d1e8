"""What a configured command line really starts."""

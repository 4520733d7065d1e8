"""The enforcing proxy: nothing unapproved reaches the model."""

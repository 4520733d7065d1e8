"""Whether a bundle may be installed: the nine steps of the verifier rulebook (v0.1.1), literally and hardened."""

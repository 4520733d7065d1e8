"""What a registry and those who publish in it tell each other."""

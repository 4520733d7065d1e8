"""Find signs of an attack in text that the model reads. Start with ``scan.py``; ``cues.py`` applies all rules."""

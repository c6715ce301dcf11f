"""What guessing tokens brings, and that it changes none."""

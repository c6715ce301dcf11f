"""What the runtime adds to whatever engine it runs."""

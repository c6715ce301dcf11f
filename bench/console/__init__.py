"""What the console costs, and how soon it answers."""

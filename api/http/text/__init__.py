"""What the two text endpoints are made of: parts of their requests, their choices, and what is told of tokens."""

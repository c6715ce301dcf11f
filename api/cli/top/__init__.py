"""`tripower top`: a server at work, live in a terminal."""

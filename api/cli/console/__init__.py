"""`tripower console`: a prompt, or single verbs, of a running process; flight recordings made from it and stepped through."""

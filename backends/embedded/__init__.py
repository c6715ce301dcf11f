"""Graphs of torch that belong to one kind of model each: sentence encoders of the family BERT, such as MiniLM."""

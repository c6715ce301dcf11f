"""`/v1/requests`: what a caller has asked and is not answered yet, and how to end it."""

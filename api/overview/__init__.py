"""One view of a whole server at a moment, for the live screen and the web page."""

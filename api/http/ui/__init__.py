"""The web page: a chat and a live view of the server, from files of this folder and nothing from elsewhere."""

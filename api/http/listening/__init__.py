"""Listening sockets beyond plain TCP: certificates, encrypted transports, Unix sockets, and who may be listened to at all."""

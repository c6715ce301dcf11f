"""The live console: a Unix socket into a running process, the verbs that it answers, and the client that asks."""

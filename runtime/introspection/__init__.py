"""Looking into a running process at no cost when nobody looks: tasks, stalls, and the messages that have passed."""

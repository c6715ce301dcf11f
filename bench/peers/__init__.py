"""The engines that ours is compared with, each in a child process."""

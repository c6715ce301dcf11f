"""The whole runtime on virtual time, with faults drawn from a seed."""

"""Measurements that ship: `tripower bench …`. Nothing imports this package but the command line, and only when a bench is asked for."""

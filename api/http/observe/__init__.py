"""What is told of requests: log lines, the audit log, spans, and metrics under other servers' names."""

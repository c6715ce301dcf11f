"""How families of models write reasoning and tool calls, and who reads it. `plan.py` puts it together for the text layer."""

"""How far an engine's distributions are from those of the file's exact values in float32."""

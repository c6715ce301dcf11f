"""SafeTensors checkpoints of decoder families, shown as if they were GGUF files."""

"""mistral.rs out of its wheel, in this process. `MistralrsBackend` is in `backend`; the wheel is imported by its first load."""

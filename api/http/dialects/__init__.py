"""What the dialects have in common whose answers are made of parts: OpenAI's Responses and Anthropic's Messages."""

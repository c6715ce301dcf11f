"""`POST /v1/responses` and its `input_tokens`, without a memory: OpenAI's Responses over the runtime's conversations."""

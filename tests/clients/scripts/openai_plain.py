"""The official client: plain prompts, embeddings, models."""

from __future__ import annotations

from typing import Any

import openai

from tests.clients.scripts.report import report, servers

[SERVER] = servers()
client: Any = openai.OpenAI(base_url=SERVER.base_url, api_key=SERVER.key, max_retries=0)
GREEDY: Any = {"model": "smollm2", "temperature": 0}
PROMPT = "The capital of France is"


def completion() -> Any:
    whole = client.completions.create(prompt=PROMPT, max_tokens=6, **GREEDY)
    pieces = client.completions.create(prompt=PROMPT, max_tokens=6, stream=True, **GREEDY)
    return {"whole": whole.model_dump(), "streamed": "".join(piece.choices[0].text for piece in pieces if piece.choices)}


def echoed() -> Any:
    answer = client.completions.create(prompt=PROMPT, max_tokens=1, echo=True, logprobs=2, **GREEDY)
    return {"text": answer.choices[0].text, **answer.choices[0].logprobs.model_dump()}


def prompts() -> Any:
    rows = [PROMPT, "One, two, three,"]
    together = client.completions.create(prompt=rows, max_tokens=4, **GREEDY)
    alone = [client.completions.create(prompt=row, max_tokens=4, **GREEDY).choices[0].text for row in rows]
    return {
        "indices": [choice.index for choice in together.choices],
        "together": [choice.text for choice in together.choices],
        "alone": alone,
    }


def embeddings() -> Any:
    rows = ["A cat sleeps.", "A kitten naps.", "Shares fell sharply."]
    packed = client.embeddings.create(model="minilm", input=rows)
    plain = client.embeddings.create(model="minilm", input=rows, encoding_format="float")
    short = client.embeddings.create(model="minilm", input=rows[0], dimensions=8)
    vectors = [row.embedding for row in packed.data]
    return {
        "same": max(abs(a - b) for x, y in zip(vectors, plain.data, strict=True) for a, b in zip(x, y.embedding, strict=True)),
        "lengths": [len(vector) for vector in vectors],
        "dimensions": len(short.data[0].embedding),
        "near": sum(a * b for a, b in zip(vectors[0], vectors[1], strict=True)),
        "far": sum(a * b for a, b in zip(vectors[0], vectors[2], strict=True)),
        "tokens": packed.usage.prompt_tokens,
    }


def models() -> Any:
    return {"listed": [model.id for model in client.models.list()], "one": client.models.retrieve("minilm").object}


report([completion, echoed, prompts, embeddings, models])

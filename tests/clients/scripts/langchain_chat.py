"""LangChain's `ChatOpenAI` and `OpenAIEmbeddings`."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from tests.clients.scripts.report import QUESTION, report, servers

[SERVER] = servers()
OPTIONS: Any = {"base_url": SERVER.base_url, "api_key": SERVER.key, "max_retries": 0}
model: Any = ChatOpenAI(model="smollm2", temperature=0, max_tokens=60, **OPTIONS)


class City(BaseModel):
    """A city."""

    city: str


def look_up(city: str) -> str:
    """The weather in a city."""
    return f"clear in {city}"


weather: Any = tool("weather")(look_up)


def invoked() -> Any:
    answer = model.invoke(QUESTION)
    return {"text": answer.content, "usage": answer.usage_metadata, "model": answer.response_metadata["model_name"]}


def streamed() -> Any:
    chunks = list(model.stream(QUESTION, stream_usage=True))
    whole: Any = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    return {"text": whole.content, "usage": whole.usage_metadata, "pieces": len(chunks)}


def called() -> Any:
    asked = HumanMessage("What is the weather in Oslo?")
    bound = model.bind_tools([weather], tool_choice="weather", parallel_tool_calls=False)
    first = bound.invoke([asked])
    [call] = first.tool_calls
    result = weather.invoke(call)
    second = model.invoke([asked, first, result])
    return {"name": call["name"], "arguments": call["args"], "result": result.content, "text": second.content}


def structured() -> Any:
    """By the three methods that LangChain knows."""
    seen = {}
    for method in ("json_schema", "function_calling"):
        found = model.with_structured_output(City, method=method).invoke(QUESTION)
        seen[method] = type(found).__name__
    seen["json_mode"] = type(
        model.with_structured_output(None, method="json_mode").invoke(f"{QUESTION} Answer in JSON.")
    ).__name__
    return seen


def batched() -> Any:
    return [answer.content for answer in model.batch([QUESTION, QUESTION])]


def embedded() -> Any:
    """LangChain tokenises by itself unless told not to; a model of its own name is needed for that."""
    embeddings = OpenAIEmbeddings(model="minilm", check_embedding_ctx_length=False, **OPTIONS)
    return [len(vector) for vector in embeddings.embed_documents(["A cat.", "A kitten."])]


report([invoked, streamed, called, structured, batched, embedded])

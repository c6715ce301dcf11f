"""Anything that JSON can say, where a request would be."""

from __future__ import annotations

from hypothesis import strategies as st

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
field_names = st.sampled_from(
    ["model", "messages", "prompt", "stream", "stream_options", "max_tokens", "stop", "temperature", "top_p", "top_k", "logit_bias",
     "seed", "n", "best_of", "echo", "logprobs", "top_logprobs", "prompt_logprobs", "stop_token_ids", "min_tokens", "n_predict",
     "priority", "tools", "tool_choice", "functions", "function_call", "chat_template_kwargs", "reasoning_effort",
     "continue_final_message", "response_format", "structured_outputs", "guided_json", "guided_choice", "grammar", "json_schema",
     "return_progress", "include_stop_str_in_output", "user", "zz"]
)  # fmt: skip
conversations = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "x"]), "content": json_values}, optional={"name": json_values}),
    max_size=3,
)  # fmt: skip

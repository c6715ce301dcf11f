"""The figures under other servers' names, where the settings ask for them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.api.serving import CHAT, serving_toy

TOY = {"model": "toy", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "ignore_eos": True}


async def test_both_families_parse_and_tell_what_ours_tells() -> None:
    async with serving_toy(metrics_families=("vllm", "llamacpp")) as server:
        for _ in range(2):
            assert (await server.ask(CHAT, TOY)).status == 200
        text = (await server.ask("/metrics")).body.decode()
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    labels = (("engine", "0"), ("model_name", "toy"))
    assert samples["vllm:generation_tokens_total", labels] == 16
    assert samples["vllm:num_requests_running", labels] == samples["vllm:num_requests_waiting", labels] == 0
    assert samples["vllm:kv_cache_usage_perc", labels] == samples["vllm:gpu_cache_usage_perc", labels] == 0
    assert samples["vllm:time_to_first_token_seconds_count", labels] == 2
    assert samples["vllm:inter_token_latency_seconds_count", labels] == 2
    finished = (("engine", "0"), ("finished_reason", "length"), ("model_name", "toy"))
    assert samples["vllm:request_success_total", finished] == 2
    assert samples["llamacpp:tokens_predicted_total", ()] == 16
    assert samples["llamacpp:requests_processing", ()] == 0
    assert samples["llamacpp:n_busy_slots_per_decode", ()] > 0


async def test_nobody_elses_names_appear_unasked() -> None:
    async with serving_toy() as server:
        text = (await server.ask("/metrics")).body.decode()
    assert "vllm:" not in text and "llamacpp:" not in text

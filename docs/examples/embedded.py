"""tripower inside a Trio program: one question streamed, three at a time, and one that takes too long.

    python docs/examples/embedded.py [MODEL]

MODEL is whatever `tripower run` understands; `smollm2` has to be pulled once (`tripower pull smollm2`), `toy` needs nothing.
"""

from __future__ import annotations

import sys

import trio

import tripower

CITIES = ("France", "Italy", "Japan")


async def main(model: str) -> None:
    async with tripower.open_runtime(models=[model]) as runtime:
        name = (await runtime.models())[0].name

        # 1. Stream one answer. Leaving the loop early would free its seat at the next step.
        question = [{"role": "user", "content": "What is the capital of France?"}]
        async for event in runtime.chat(name, question, max_tokens=10, temperature=0):
            print(event.text, end="", flush=True)
            if isinstance(event, tripower.GenerationFinished):
                print(f"\n({event.usage.completion_tokens} tokens, {event.reason})")

        # 2. Several at the same time: they share every step of the model.
        async def ask(country: str) -> None:
            prompt = f"The capital of {country} is"
            answer = [event.text async for event in runtime.complete(name, prompt, max_tokens=4, temperature=0)]
            print(f"{prompt}{''.join(answer)!r}")

        async with trio.open_nursery() as nursery:
            for country in CITIES:
                nursery.start_soon(ask, country)

        # 3. Cancellation is Trio's: whatever scope is cancelled, the seat is free again.
        story = [{"role": "user", "content": "Tell me a very long story."}]
        with trio.move_on_after(0.2):
            async for _ in runtime.chat(name, story, max_tokens=500, ignore_eos=True):
                pass

        print("health:", runtime.health().status)


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "smollm2")

"""tripower: an actor-based inference runtime on Trio.

    async with tripower.open_runtime() as runtime:
        async with runtime.chat("smollm2", [{"role": "user", "content": "Hello!"}]) as answer:
            async for event in answer:
                print(event.text, end="")
"""

__version__ = "0.1.0"

"""Numbers of a request that types cannot check: seeds, logit bias, the penalty with two names, and the priority of the headers."""

from __future__ import annotations

from collections.abc import Mapping

from tripower.actors.request_checks import LOGIT_BIAS_ENTRIES_MAX, RANGES
from tripower.runtime.kernel import InvalidRequest

UINT64 = 1 << 64


def priority_of(headers: Mapping[bytes, bytes]) -> int | None:
    """What the headers say; None: nothing. Raises `InvalidRequest`."""
    for name, sign in ((b"x-tripower-priority", 1), (b"x-vllm-priority", -1)):
        text = headers.get(name)
        if text is None:
            continue
        digits = text.strip().removeprefix(b"-")
        if not (digits.isdigit() and len(digits) <= 3 and int(digits) <= 100):
            raise InvalidRequest(f"{name.decode()} is a whole number from -100 to 100", param=name.decode())
        return sign * int(text)
    return None


def one_penalty(repeat_penalty: float | None, repetition_penalty: float | None) -> float | None:
    if repeat_penalty is None or repetition_penalty is None:
        return repetition_penalty if repeat_penalty is None else repeat_penalty
    if repeat_penalty != repetition_penalty:
        raise InvalidRequest(
            "repeat_penalty and repetition_penalty are one setting; give one of them", param="repetition_penalty"
        )
    return repeat_penalty


def seed_of(seed: int) -> int:
    if not -(UINT64 >> 1) <= seed < UINT64:
        raise InvalidRequest("seed has at most 64 bits", param="seed")
    return seed % UINT64


def logit_bias_of(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    if len(given) > LOGIT_BIAS_ENTRIES_MAX:
        raise InvalidRequest(f"logit_bias has at most {LOGIT_BIAS_ENTRIES_MAX} entries", param="logit_bias")
    least, most = RANGES["logit_bias"]
    for token, bias in given.items():
        if not (token.isascii() and token.isdigit() and len(token) <= 10):
            raise InvalidRequest(f"logit_bias: {token[:20]!r} is no token id", param="logit_bias")
        if not least <= bias <= most:
            raise InvalidRequest(f"logit_bias of {token} is not within {least} and {most}", param="logit_bias")
    return tuple((int(token), bias) for token, bias in given.items())

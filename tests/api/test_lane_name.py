"""The lane is called after the device that models run on."""

from __future__ import annotations

import pytest
import torch

from tripower.api.plan import lane_name
from tripower.runtime.configuration import Configuration
from tripower.runtime.configuration.settings import EngineSettings
from tripower.runtime.kernel.errors import ModelRefused


def with_device(device: str) -> Configuration:
    return Configuration(engine=EngineSettings(device=device))


@pytest.mark.parametrize(
    ("device", "cuda", "expected"),
    [("auto", False, "cpu0"), ("auto", True, "cuda:0"), ("cpu", True, "cpu0"), ("cuda:1", True, "cuda:1")],
)
def test_the_lane_is_called_after_the_device(device: str, cuda: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert lane_name(with_device(device), ["model.gguf"]) == expected


def test_a_device_that_is_not_there_is_refused_before_a_runtime_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelRefused) as caught:
        lane_name(with_device("cuda"), ["model.gguf"])
    assert caught.value.code == "device_not_available"
    assert lane_name(with_device("cuda"), []) == "cpu0"

"""From the settings to a draft model: which one it is, and where none can be had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tripower.actors.models import ModelSource
from tripower.api.drafting import find_draft, speculation_settings, with_draft
from tripower.api.plan import make_plan, read_needs, source_needs
from tripower.bench.gguf_samples import byte_level_metadata, llama_tensors, write_gguf
from tripower.runtime.configuration import Configuration, load_configuration
from tripower.runtime.configuration.settings import SpeculationChoices
from tripower.runtime.engine import DraftSpecification
from tripower.runtime.host import ModelNeeds
from tripower.runtime.kernel import InvalidConfiguration, NotFound
from tripower.runtime.speculation import Strategy
from tripower.runtime.store import Store

TOY = ModelSource(name="toy", source="toy", backend="toy")
DIGEST = "AB" * 32


def choices(mode: str = "draft-model", draft: str = "toy", **more: Any) -> SpeculationChoices:
    return SpeculationChoices(mode=mode, draft_model=draft, **more)


def test_a_plan_names_the_draft_for_each_model() -> None:
    plan = make_plan(Configuration(speculation=choices(draft_max=3)), [TOY])
    assert plan.limits.draft == DraftSpecification(name="toy", source="toy")
    settings = plan.limits.queue.speculation
    assert settings is not None and (settings.strategy, settings.width_max) == (Strategy.DRAFT_MODEL, 3)


def test_digests_are_compared_in_lower_case() -> None:
    found = find_draft(choices(draft_sha256=DIGEST, draft_target_sha256=DIGEST), [], lambda reference: TOY)
    assert found == DraftSpecification(name="toy", source="toy", sha256=DIGEST.lower(), target_sha256=DIGEST.lower())


@pytest.mark.parametrize("mode", ["off", "auto", "ngram-context"])
def test_a_draft_that_no_mode_asks_for_is_not_even_looked_for(mode: str) -> None:
    assert find_draft(choices(mode, "nowhere"), [TOY], lambda reference: pytest.fail("looked for")) is None


def test_a_mode_without_its_draft_names_the_setting() -> None:
    with pytest.raises(InvalidConfiguration, match=r"name it by speculation\.draft_model") as refusal:
        speculation_settings(choices(draft=""))
    assert (refusal.value.code, refusal.value.param) == ("draft_missing", "speculation.draft_model")


@pytest.mark.parametrize("backend", ["llamacpp", "mistralrs", "proxy"])
def test_an_engine_that_takes_no_draft_is_refused_before_anything_is_loaded(backend: str) -> None:
    far = ModelSource(name="far", source="f.gguf", backend=backend)
    for draft, models in ((TOY, [TOY, far]), (far, [TOY])):
        with pytest.raises(InvalidConfiguration, match=f"far runs on {backend}") as refusal:
            find_draft(choices(), models, {"toy": draft}.__getitem__)
        assert refusal.value.code == "no_draft_here"


def test_models_of_embeddings_are_served_beside_models_that_have_a_draft() -> None:
    encoder = ModelSource(name="e", source="e", backend="embedded")
    assert find_draft(choices(), [TOY, encoder], lambda reference: TOY) is not None
    with pytest.raises(InvalidConfiguration):
        find_draft(choices(), [TOY], lambda reference: encoder)


def test_a_draft_that_is_not_on_this_machine_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="tripower pull smollm2"):
        make_plan(Configuration(speculation=choices(draft="smollm2")), [TOY], store=Store(tmp_path))


def test_the_memory_of_a_draft_is_part_of_what_its_target_needs(tmp_path: Path) -> None:
    keys = byte_level_metadata()
    path = tmp_path / "m.gguf"
    path.write_bytes(write_gguf(keys, llama_tensors(262)))
    source = ModelSource(name="m", source=str(path), backend="picolm")
    alone = read_needs(str(path))
    assert source_needs(source, draft=DraftSpecification(name="d", source=str(path))) == with_draft(alone, alone)
    assert with_draft(alone, alone) == ModelNeeds(
        context_max=128, state_bytes_per_token=2 * alone.state_bytes_per_token, weight_bytes=2 * alone.weight_bytes
    )


@pytest.mark.parametrize(
    ("name", "value"), [("draft_sha256", "12"), ("draft_target_sha256", "g" * 64), ("draft_model", " x"), ("mode", "drafts")]
)
def test_a_setting_that_cannot_be_is_refused_by_its_path(name: str, value: str) -> None:
    with pytest.raises(InvalidConfiguration, match=rf"speculation\.{name}"):
        load_configuration(file=None, environment={}, flags={f"speculation.{name}": value})


def test_a_draft_that_is_not_there_is_said_to_be_the_draft() -> None:
    def nowhere(reference: str) -> ModelSource:
        raise NotFound(f"there is no file {reference}", code="file_not_found")

    with pytest.raises(NotFound, match="^speculation.draft_model: there is no file ./small.gguf") as refusal:
        find_draft(choices(draft="./small.gguf"), [TOY], nowhere)
    assert (refusal.value.code, refusal.value.param) == ("file_not_found", "speculation.draft_model")

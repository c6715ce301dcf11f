"""Loads a model together with a smaller one that guesses for it.

A draft is worth nothing to a target that it does not fit, so that all of it is compared before any weights are read: digests where
they were given, contexts, both vocabularies in full. The draft takes a part of the memory for states, by what a position of either
takes, and everything else as the target does. What a step of it costs beside one of the target is measured once on a machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from tripower.backends.beside import beside
from tripower.backends.model_file import ModelFile, make_text_layer, open_model
from tripower.backends.picolm.architectures import find_architecture
from tripower.backends.picolm.backend import LoadPlan, load_engine, plan_load, state_bytes_per_position
from tripower.backends.picolm.draft_cost import measure_step_cost
from tripower.backends.refusing import refusing
from tripower.runtime.engine import DraftSpecification, LoadedModel, LoadSpecification, Progress, TextLayer
from tripower.runtime.kernel.errors import ModelRefused
from tripower.runtime.speculation import DraftedEngine, DraftModel

BLOCK_BYTES = 16 << 20
PADDING_MAX = 128
"""Tokens by which one vocabulary may be longer than the other: rows that were added to make a matrix even."""
DRAFT = "speculation.draft_model"


class Choices(msgspec.Struct, frozen=True):
    """What `PicolmBackend` was made with."""

    kernels: str
    kv_type: str
    device: str


def load_drafted(
    specification: LoadSpecification, draft: DraftSpecification, choices: Choices, progress: Progress
) -> Iterator[LoadedModel | None]:
    """Yield None at boundaries and the model last. Raises `ModelRefused`: what `PicolmBackend.load` raises of either file, with
    `param` naming the setting where it is the draft's, `draft_digest_mismatch`, `draft_target_mismatch`, `draft_context_too_short`,
    `draft_vocab_mismatch`. Nothing is left behind then.
    """
    name = draft.name
    with ExitStack() as files:
        file = files.enter_context(open_model(specification.source))
        with of_draft(name):
            other = files.enter_context(open_model(draft.source))
        yield from check_digests(file, other, draft)
        plan, draft_plan, parts = plan_both(file, other, specification, name, choices)
        yield None
        (text, _), _ = yield from beside(lambda: compare_texts(file, other, plan, draft_plan, name), boundaries())
        engine = yield from load_engine(file, plan, parts[0], progress)
        with ExitStack() as engines:
            engines.callback(engine.close)
            with of_draft(name):
                guessing = yield from load_engine(
                    other, draft_plan, parts[1], lambda stage, done: progress(f"draft {stage}", done)
                )
            engines.callback(guessing.close)
            cost = yield from measure_step_cost(engine, guessing)
            engines.pop_all()
    model = DraftModel(guessing, step_cost=cost)
    yield LoadedModel(DraftedEngine(engine, model), text, model)


@contextmanager
def of_draft(name: str) -> Iterator[None]:
    """Say of whatever is wrong that it is the draft's fault."""
    try:
        with refusing(name):
            yield
    except ModelRefused as error:
        raise ModelRefused(f"the draft model {name}: {error.message}", code=error.code, param=DRAFT) from error


def boundaries() -> Generator[None, None, None]:
    """Nothing to do meanwhile."""
    yield


def plan_both(
    file: ModelFile, other: ModelFile, specification: LoadSpecification, name: str, choices: Choices
) -> tuple[LoadPlan, LoadPlan, tuple[LoadSpecification, LoadSpecification]]:
    """What will be made of the two files, the draft called `name`, and what each is told. Reads headers only."""
    each = state_bytes_per_position(find_architecture(file).read_decoder(file), choices.kv_type)
    with of_draft(name):
        decoder = find_architecture(other).read_decoder(other)
        more = state_bytes_per_position(decoder, choices.kv_type)
    room = specification.state_bytes_max * each // (each + more)
    ours = msgspec.structs.replace(specification, state_bytes_max=room, draft=None)
    plan = plan_load(file, ours, choices.kernels, choices.kv_type, choices.device)
    if plan.device != "cpu":
        raise ModelRefused(
            f"guesses cannot be verified on {plan.device}: set speculation.mode to off, or engine.device to cpu",
            code="unsupported_by_engine",
            param="speculation.mode",
        )
    if decoder.context_trained < plan.context:
        raise ModelRefused(
            f"the draft model {name} was trained for {decoder.context_trained} positions, and its target has {plan.context}: "
            f"set engine.context to {decoder.context_trained}, or take another draft",
            code="draft_context_too_short",
            param=DRAFT,
        )
    theirs = msgspec.structs.replace(
        ours,
        name=name,
        source=str(other.path),
        context=plan.context,
        state_bytes_max=specification.state_bytes_max - room,
    )
    with of_draft(name):
        draft_plan = plan_load(other, theirs, choices.kernels, choices.kv_type, choices.device)
    return plan, draft_plan, (ours, theirs)


def check_digests(file: ModelFile, other: ModelFile, draft: DraftSpecification) -> Generator[None, None, None]:
    """Compare the files with the digests that were given. Yields between blocks. Raises `ModelRefused`."""
    if draft.sha256:
        with of_draft(draft.name):
            found = yield from digest_of(other)
        if found != draft.sha256.lower():
            raise ModelRefused(
                f"the draft model {draft.name} has the SHA-256 {found}, and speculation.draft_sha256 asks for "
                f"{draft.sha256.lower()}: the file is damaged or another one; pull it again, or correct the setting",
                code="draft_digest_mismatch",
                param="speculation.draft_sha256",
            )
    if draft.target_sha256:
        found = yield from digest_of(file)
        if found != draft.target_sha256.lower():
            raise ModelRefused(
                f"the draft model {draft.name} was made for the model with the SHA-256 {draft.target_sha256.lower()}, and "
                f"{file.path.name} has {found}: serve that model, take a draft for this one, or correct "
                "speculation.draft_target_sha256",
                code="draft_target_mismatch",
                param="speculation.draft_target_sha256",
            )


def digest_of(file: ModelFile) -> Generator[None, None, str]:
    """SHA-256 of a model's one file in hex. Raises `ModelRefused` for a checkpoint, which has several."""
    if not file.path.is_file():
        raise ModelRefused(
            f"{file.path.name} has several files and no digest: leave the digest out", code="no_digest", param=DRAFT
        )
    state = hashlib.sha256()
    with file.path.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            state.update(block)
            yield
    return state.hexdigest()


def compare_texts(
    file: ModelFile, other: ModelFile, plan: LoadPlan, draft_plan: LoadPlan, name: str
) -> tuple[TextLayer, TextLayer]:
    """Both text layers, which agree. Blocks for seconds if there are many tokens. Raises `ModelRefused`."""
    text = make_text_layer(file)
    with of_draft(name):
        draft_text = make_text_layer(other)
    check_vocabularies(name, text, draft_text, plan.decoder.vocabulary_size, draft_plan.decoder.vocabulary_size)
    return text, draft_text


def check_vocabularies(name: str, ours: TextLayer, theirs: TextLayer, size: int, draft_size: int) -> None:
    """Raise `ModelRefused` (`draft_vocab_mismatch`), naming the first difference, unless a token means the same to both."""

    def mismatch(what: str) -> ModelRefused:
        return ModelRefused(
            f"the draft model {name} has another vocabulary than its target: {what}; take a draft of the target's family",
            code="draft_vocab_mismatch",
            param=DRAFT,
        )

    if abs(size - draft_size) > PADDING_MAX:
        raise mismatch(f"{draft_size} tokens and {size}")
    for token in range(min(size, draft_size)):
        spelt, expected = theirs.spelling(token), ours.spelling(token)
        if spelt != expected or bool(theirs.piece(token)) != bool(ours.piece(token)):
            raise mismatch(f"the token {token} is {spelt!r} and {expected!r}")
    if theirs.end_tokens != ours.end_tokens:
        raise mismatch(f"a text ends with {sorted(theirs.end_tokens)} and {sorted(ours.end_tokens)}")
    begins, expects = theirs.tokenize(""), ours.tokenize("")
    if begins != expects:
        raise mismatch(f"a text begins with {begins} and {expects}")

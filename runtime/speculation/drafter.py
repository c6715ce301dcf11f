"""A sequence's drafter: a source of guesses, a controller that says how many are worth it, a circuit that gives up in time."""

from __future__ import annotations

from collections.abc import Sequence

from tripower.runtime.engine.drafting import ALONE, Beside, Drafter
from tripower.runtime.engine.row_costs import DEFAULT_ROW_COSTS, RowCosts
from tripower.runtime.kernel.errors import InvalidConfiguration
from tripower.runtime.speculation.circuit import Circuit
from tripower.runtime.speculation.controller import Controller
from tripower.runtime.speculation.lookup import Lookup, Source
from tripower.runtime.speculation.settings import DRAFT_ADAPTIVE, DRAFT_FIXED, LOOKUPS, SpeculationSettings, Strategy


class SourceDrafter:
    """What drafters over a source have in common: what their guesses cost is what the source says."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @property
    def token_cost(self) -> float:
        return self.source.token_cost

    @property
    def spent(self) -> float:
        return self.source.spent


class AdaptiveDrafter(SourceDrafter):
    """A `Drafter` whose widths follow what its guesses were worth. See `runtime.engine.drafting` for what its methods promise.

    Its guesses are free, and so are those that are only made to be judged.
    """

    def __init__(self, source: Source, costs: RowCosts, *, width_max: int = DRAFT_ADAPTIVE, width_min: int = 1) -> None:
        super().__init__(source)
        self.controller = Controller(costs, width_max=width_max)
        self.circuit = Circuit()
        self.started = False
        """Whether the first token is there: the prompt's last row drew it, so it took no step of its own."""
        self._width_max, self._width_min = width_max, width_min
        self._beside = ALONE
        self._expected: int | None = None
        self._expected_for = 0

    @property
    def quiet(self) -> int:
        return self.circuit.quiet

    def propose(self, most: int, beside: Beside = ALONE) -> Sequence[int]:
        self._beside = beside
        if self.circuit.resting or most < self._width_min:
            return ()
        guesses = self.source.guess(min(most, self._width_max))
        if len(guesses) < self._width_min:
            return ()
        width = self.controller.choose(len(guesses), self.source.matched, beside)
        return guesses[:width] if width >= self._width_min else ()

    def accept(self, tokens: Sequence[int], proposed: int) -> None:
        if proposed:
            self._judge_draft(tokens, proposed)
            for token in tokens:
                self.source.push(token)
        else:
            for token in tokens:
                self._pass(token)

    def _judge_draft(self, tokens: Sequence[int], proposed: int) -> None:
        """Learn from an evaluated draft. The token behind it was guessed at as well, and tells for nothing."""
        matched = self.source.matched
        right = self.controller.judge(self.source.guess(proposed + 1), tokens, matched)
        saved = self.controller.settle(proposed, len(tokens), self._beside)
        self.circuit.drafted(min(right, proposed), saved)
        self._expected = None

    def _pass(self, token: int) -> None:
        """Learn from a token that no draft was evaluated for, and take it."""
        source, controller = self.source, self.controller
        guesses, matched = source.guess(2), source.matched
        if self._expected is not None:
            controller.judge_next(self._expected == token, self._expected_for)
            self._expected = None
        right = False
        if guesses:
            right = guesses[0] == token
            controller.judge_first(right, matched)
            if right and len(guesses) > 1:
                self._expected, self._expected_for = guesses[1], matched
        if self.started:
            controller.settle(0, 1, self._beside)
        self.started = True
        self.circuit.passed(right)
        source.push(token)


class FixedDrafter(SourceDrafter):
    """A `Drafter` with drafts as long as there are guesses: for measurements of one width, and for tests."""

    quiet = 0

    def __init__(self, source: Source, *, width_max: int = DRAFT_FIXED, width_min: int = 1) -> None:
        super().__init__(source)
        self._width_max, self._width_min = width_max, width_min

    def propose(self, most: int, beside: Beside = ALONE) -> Sequence[int]:
        guesses = self.source.guess(min(most, self._width_max))
        return guesses if len(guesses) >= self._width_min else ()

    def accept(self, tokens: Sequence[int], proposed: int) -> None:
        for token in tokens:
            self.source.push(token)


def resolve(strategy: Strategy, *, draft: bool = False) -> Strategy:
    """What a strategy comes to; `draft`: for a model with a draft model. Raises `InvalidConfiguration` for one that lacks its weights.

    `auto` is `ngram-context`: it finds all that `prompt-lookup` finds, and the ledger makes trying it safe.
    """
    if strategy is Strategy.AUTO:
        return Strategy.NGRAM_CONTEXT
    if strategy is Strategy.OFF or strategy in LOOKUPS or (strategy is Strategy.DRAFT_MODEL and draft):
        return strategy
    if strategy is Strategy.DRAFT_MODEL:
        raise InvalidConfiguration(
            "speculation.mode: draft-model needs a second, smaller model that guesses; name it by speculation.draft_model, "
            "or use auto, prompt-lookup or ngram-context",
            code="draft_missing",
            param="speculation.draft_model",
        )
    raise InvalidConfiguration(
        f"speculation.mode: {strategy.value} needs draft weights, and this model has none; use auto, prompt-lookup or ngram-context",
        code="unsupported_strategy",
        param="speculation.mode",
    )


def make_drafter(settings: SpeculationSettings, prompt: Sequence[int], costs: RowCosts = DEFAULT_ROW_COSTS) -> Drafter | None:
    """A drafter without weights for the sequence with this prompt; None where speculation is off. Indexes the prompt: call it off the loop.

    Raises `InvalidConfiguration` for a strategy that needs weights.
    """
    strategy = resolve(settings.strategy)
    if strategy is Strategy.OFF:
        return None
    grows = strategy is Strategy.NGRAM_CONTEXT
    source = Lookup(prompt, grows=grows, shortest=settings.ngram_min, longest=settings.ngram_max)
    if not settings.adaptive:
        return FixedDrafter(source, width_max=settings.width_max, width_min=settings.draft_min)
    return AdaptiveDrafter(source, costs, width_max=settings.width_max, width_min=settings.draft_min)

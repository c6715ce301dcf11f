"""A drafter whose guesses cost steps of a draft model: how many are worth it is decided before they are made.

It differs from drafters that look up. Guesses that are only made to be judged would cost as much as others, so that none are: what is known of a
request's rates fades with each token that passes without a guess, towards what holds before any, and a request that rests begins
again after as many tokens as would otherwise have had to be right. What guessing cost is entered in the ledger whether or not a guess was
evaluated, and nothing is guessed that the ledger, which lends a step at the beginning, does not afford. The prompt's evaluation by the draft is left out, as the prompt's own is.
"""

from __future__ import annotations

from collections.abc import Sequence

from tripower.runtime.engine import SamplingParameters
from tripower.runtime.engine.drafting import ALONE, Beside, Drafter
from tripower.runtime.engine.row_costs import RowCosts
from tripower.runtime.speculation.circuit import Circuit
from tripower.runtime.speculation.controller import Controller
from tripower.runtime.speculation.draft_model import DraftModel
from tripower.runtime.speculation.drafter import FixedDrafter, SourceDrafter
from tripower.runtime.speculation.model_source import MATCHED, ModelSource
from tripower.runtime.speculation.settings import DRAFTS, SpeculationSettings, Strategy

FOR_EVER = 1 << 30
LOAN = 1.0
"""Steps that a request may lose at its beginning. What a draft has not read grows with every plain token, and at a tenth of the target's cost
it grows faster than 2 %: whoever waits until they come to a guess would wait for ever."""


class ModelDrafter(SourceDrafter):
    """A `Drafter`. See `runtime.engine.drafting` for what its methods promise."""

    source: ModelSource

    def __init__(
        self, source: ModelSource, costs: RowCosts, *, width_max: int = DRAFTS[Strategy.DRAFT_MODEL], width_min: int = 1
    ) -> None:
        super().__init__(source)
        self.controller = Controller(costs, width_max=width_max, loan=LOAN)
        self.circuit = Circuit()
        self.started = False
        """Whether the first token is there: see `AdaptiveDrafter`."""
        self._width_max, self._width_min = width_max, width_min
        self._beside = ALONE
        self._guesses: Sequence[int] = ()

    @property
    def quiet(self) -> int:
        return FOR_EVER if self.source.lost else self.circuit.quiet

    def propose(self, most: int, beside: Beside = ALONE) -> Sequence[int]:
        self._beside, self._guesses = beside, ()
        most = min(most, self._width_max)
        if self.circuit.resting or most < self._width_min:
            return ()
        first, each = self.source.first_cost, self.source.token_cost
        width = self.controller.choose(most, MATCHED, beside, first=first, each=each)
        if not width or width < self._width_min:
            return ()
        self._guesses = self.source.guess(width)
        return self._guesses if len(self._guesses) >= self._width_min else ()

    def accept(self, tokens: Sequence[int], proposed: int) -> None:
        if proposed or self.spent:
            self._judge(tokens, proposed)
        else:
            for _ in tokens:
                self._pass()
        self._guesses = ()
        for token in tokens:
            self.source.push(token)

    def _judge(self, tokens: Sequence[int], proposed: int) -> None:
        """Learn from what was guessed, all of which was paid for, and from what was evaluated of it."""
        right = self.controller.judge(self._guesses, tokens, MATCHED)
        saved = self.controller.settle(proposed, len(tokens), self._beside, self.spent)
        self.circuit.drafted(min(right, proposed), saved)

    def _pass(self) -> None:
        """A token came without a guess."""
        if self.started:
            self.controller.settle(0, 1, self._beside)
        self.started = True
        self.controller.fade(MATCHED)
        self.circuit.passed(self.circuit.resting)


def make_model_drafter(
    settings: SpeculationSettings,
    prompt: Sequence[int],
    costs: RowCosts,
    draft: DraftModel,
    sampling: SamplingParameters,
) -> Drafter:
    """A drafter that asks `draft` for the sequence with this prompt, which is drawn with `sampling`. Quick: nothing is evaluated yet."""
    source = ModelSource(draft, prompt, sampling, sure=settings.draft_p_min)
    if not settings.adaptive:
        return FixedDrafter(source, width_max=settings.width_max, width_min=settings.draft_min)
    return ModelDrafter(source, costs, width_max=settings.width_max, width_min=settings.draft_min)

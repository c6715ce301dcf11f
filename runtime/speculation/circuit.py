"""When a request stops drafting, and what brings it back.

| state | left | when |
| --- | --- | --- |
| drafting | to resting | the last 12 drafts together saved less than half a plain step, and at least 6 of them had nothing right |
| drafting | to resting | for 32 tokens on end no draft was worth its rows |
| resting | to drafting | as many guesses on end would have been right as are *needed*: 2, and twice as many for each time that drafts failed |

A resting request costs no row, and an engine may run ahead without asking. Its guesses are still judged by what is drawn.
"""

from __future__ import annotations

from collections import deque

WINDOW = 12
SAVED_MIN = 0.5
EMPTY_MIN = 6
IDLE_MAX = 32
NEEDED_FIRST = 2
NEEDED_MAX = 128


class Circuit:
    """The state of one request. Counts only; every transition is a function of them."""

    def __init__(self) -> None:
        self.resting = False
        self.failures = 0
        """Times that drafts failed."""
        self._needed = NEEDED_FIRST
        self._run = 0
        self._idle = 0
        self._saved: deque[float] = deque(maxlen=WINDOW)
        self._empty: deque[bool] = deque(maxlen=WINDOW)

    @property
    def quiet(self) -> int:
        """Tokens to come before drafting can begin again; 0 while drafting."""
        return max(self._needed - self._run, 1) if self.resting else 0

    def drafted(self, right: int, saved: float) -> None:
        """A draft was evaluated, had so many right guesses, and saved so many plain steps; less than none if it cost more."""
        self._idle = 0
        self._saved.append(saved)
        self._empty.append(right == 0)
        if len(self._saved) == WINDOW and sum(self._saved) < SAVED_MIN and sum(self._empty) >= EMPTY_MIN:
            self.failures += 1
            self._needed = min(NEEDED_FIRST << self.failures, NEEDED_MAX)
            self._rest()

    def passed(self, right: bool) -> None:
        """A token was drawn without a draft, and the guess at it would have been right or not."""
        if not self.resting:
            self._idle += 1
            if self._idle >= IDLE_MAX:
                self._rest()
            return
        self._run = self._run + 1 if right else 0
        if self._run >= self._needed:
            self.resting, self._idle = False, 0

    def _rest(self) -> None:
        self.resting, self._run = True, 0
        self._saved.clear()
        self._empty.clear()

"""How much work a worker holds beyond what its engine decodes, so that questions to the hub cost the engine nothing.

    an engine that asks when it is empty:   [generate][ask][generate][ask]     idle for ask / (generate + ask) of its time
    one that asks ahead:                    [generate][generate][generate]     the next work waits in the engine's queue
                                                  [ask]     [ask]

Work is asked for in parts of a size that is worth a question, so one such part is held: without it the engine would run a
part short before the question goes out. And by Little's law the engine ends `capacity * question / generation` completions
while the question is under way: many where completions are short or the hub is far, none that matter where a completion
takes a minute and an answer 20 ms. Work held is work that no other worker can begin, so it is held in that proportion.

Only where `inference.worker.ask_ahead` says so: a worker that never pauses is always as far ahead of the trainer as the gate
allows, and on-policy data is worth more than a few per cent of speed where the hub is near.
"""

from collections import deque

__all__ = ["AskAhead"]

_WAVES = 10
"""Completions begun together and of one length end together: so many times the average end within a question."""
_REMEMBERED = 8


class AskAhead:
    """Completions to hold, from what questions and completions took lately.

    Args:
        capacity: Completions that the engine decodes at once.
        enabled: Whether anything is held at all.
    """

    def __init__(self, capacity: int, *, enabled: bool = True) -> None:
        self._capacity = capacity
        self._enabled = enabled
        self._questions: deque[float] = deque(maxlen=_REMEMBERED)
        self._generation: deque[float] = deque(maxlen=_REMEMBERED)

    def note_question(self, seconds: float) -> None:
        """A question was answered with work after so many seconds, some of which it may have waited at the hub."""
        self._questions.append(seconds)

    def note_generation(self, seconds: float) -> None:
        """A group was in the engine for so many seconds."""
        self._generation.append(seconds)

    def held(self, part: int) -> int:
        """Completions to hold beyond the engine's capacity, at most as many again; none before anything was measured.

        Args:
            part: Completions that are worth a question.
        """
        if not self._enabled or not self._questions or not self._generation:
            return 0
        # The shortest question waited least at the hub, the shortest generation least in the engine's queue.
        question, generation = min(self._questions), min(self._generation)
        ending = _WAVES * self._capacity * question / max(generation, question)
        return min(self._capacity, part + round(ending))

# SPDX-License-Identifier: Apache-2.0
"""Places the steps of several ranks beside each other: who waits for whom.

Each rank's schedule goes on until it needs something of another: a message, or the other ranks
of a collective. One recorded rank speaks for all that it stands for. What no recorded rank
sends, or joins in, is not waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torchtpu_core.plan.placed import Schedule
from torchtpu_core.plan.schedule import Incoming, Meeting, MessageKey, Outgoing, Placing, Question


@dataclass(slots=True)
class Joined:
    """The schedules of several ranks.

    Attributes:
        role_of: for each rank, the number of the recording that stands for it.
        unmatched: how often nobody was there to wait for.
    """

    role_of: Sequence[int]
    unmatched: int = 0
    _arrivals: dict[MessageKey, float] = field(default_factory=dict)
    _ready: dict[object, dict[int, float]] = field(default_factory=dict)

    def run(self, placings: Sequence[Placing]) -> list[Schedule]:
        """The schedules, one per recording, in order."""
        done: dict[int, Schedule] = {}
        asked: dict[int, Question] = {}
        for role, steps in enumerate(placings):
            self._go_on(role, steps, None, asked, done)
        while asked:
            stuck = True
            for role in list(asked):
                while (
                    role in asked and (answer := self._answer(role, asked[role], done)) is not None
                ):
                    self._go_on(role, placings[role], answer[0], asked, done)
                    stuck = False
            if stuck:
                # Nobody can go on: what the first of them waits for does not come.
                self.unmatched += 1
                role = next(iter(asked))
                self._go_on(role, placings[role], None, asked, done)
        return [done[role] for role in range(len(placings))]

    def _go_on(
        self,
        role: int,
        steps: Placing,
        answer: float | None,
        asked: dict[int, Question],
        done: dict[int, Schedule],
    ) -> None:
        try:
            question = next(steps) if role not in asked else steps.send(answer)
            while isinstance(question, Outgoing):
                self._arrivals[self._key(question.key)] = question.arrival_s
                question = steps.send(None)
        except StopIteration as ended:
            done[role] = ended.value
            asked.pop(role, None)
            return
        asked[role] = question
        if isinstance(question, Meeting):
            self._ready.setdefault(question.key, {})[role] = question.ready_s

    def _answer(
        self, role: int, question: Question, done: dict[int, Schedule]
    ) -> tuple[float | None] | None:
        """What a rank asked for, in a tuple; None if it is not known yet."""
        if isinstance(question, Incoming):
            arrival = self._arrivals.get(self._key(question.key))
            return None if arrival is None else (arrival,)
        assert isinstance(question, Meeting)
        others = {self.role_of[rank] for rank in question.ranks}
        ready = self._ready[question.key]
        if any(other not in ready and other not in done for other in others):
            return None
        return (max(ready[other] for other in (others & ready.keys()) | {role}),)

    def _key(self, key: MessageKey) -> MessageKey:
        source, target, number = key
        return self.role_of[source], self.role_of[target], number

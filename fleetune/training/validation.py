"""Scores of held-out samples while a training goes on, and what follows from them: the best state, an early end.

Every `evaluate_every_rounds` rounds, and after the last one, the state is saved and scored by a process beside the
training. The next rounds do not wait for it, but for the scores before: whether the training ends after k n rounds is
decided by the scores up to (k - 1) n. So a busy machine, a lost device and a restart change nothing in the decision.

    scores.jsonl      in the work folder: one line for each scored state
"""

import json
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from fleetune.contracts import json_io
from fleetune.contracts.metrics import RoundScores
from fleetune.contracts.tasks import LOSS
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import FleetuneError, Refused
from fleetune.training.checkpoints import (
    StoredCheckpoint,
    adopt,
    checkpoint_folder,
    complete_of,
    is_whole,
    write_text,
)

SCORES = "scores.jsonl"


class Scoring(Protocol):
    """A process that scores one checkpoint."""

    def result(self) -> dict[str, float] | None:
        """Return the scores by name, or None while it computes. Raises what it ended with."""

    def stop(self) -> None:
        """End it, if it has not ended."""


BeginScoring = Callable[[Path], Scoring]
"""Folder of a complete checkpoint, which is kept until its scores are there -> the process that scores it."""


class Answer(NamedTuple):
    """The training may go on after so many rounds, or ends with them."""

    rounds: int
    enough: bool


def best(scores: Sequence[RoundScores]) -> RoundScores:
    """Return the scores with the lowest loss; of equal ones the first."""
    return min(scores, key=lambda each: each.values[LOSS])


def is_enough(scores: Sequence[RoundScores], patience: int | None) -> bool:
    """Return whether the last `patience` scores or more have not lowered the loss; None: never."""
    return patience is not None and bool(scores) and len(scores) - 1 - scores.index(best(scores)) >= patience


class Validation:
    """The scores of one training."""

    def __init__(
        self, training: TrainingRequest, work: Path, begin: BeginScoring | None, note: Callable[[str], None]
    ) -> None:
        """begin: needed if the training is evaluated while it runs. note: receives a sentence for each score."""
        self._training, self._work, self._note = training, work, note
        if training.evaluate_every_rounds is not None and begin is None:
            raise Refused("training: evaluate_every_rounds is set, but nothing is there that scores a checkpoint")
        self._begin = begin
        self.scores: list[RoundScores] = []
        self.ended_early = ""
        self._running: tuple[int, Scoring] | None = None
        self._asked: int | None = None
        self._due: list[int] = []
        """Rounds whose states are scored next, as an earlier attempt did not come to its end with them."""
        self._waited = False

    @property
    def every_rounds(self) -> int:
        """Rounds between two scores; 0: there are none."""
        return self._training.evaluate_every_rounds or 0

    @property
    def chooses(self) -> bool:
        """True if what the training leads to is chosen by the scores, or its end."""
        return bool(self.scores) and (self._training.keep_best or self._training.early_stopping_patience is not None)

    @property
    def kept(self) -> Collection[int]:
        """Rounds whose checkpoints are needed: the best, and those that are being scored."""
        best_rounds = {best(self.scores).rounds} if self.scores and self._training.keep_best else set()
        waiting = {*self._due, *([self._running[0]] if self._running else [])}
        return best_rounds | waiting | ({self._asked} if self._asked is not None else set())

    @property
    def complete(self) -> bool:
        """True if the state after the last round is scored, or none is to be."""
        return not self.every_rounds or any(each.rounds == self._training.rounds for each in self.scores)

    def resume(self, rounds: int, earlier: Sequence[Path]) -> None:
        """Read the scores of states up to a checkpoint's, of this attempt and of earlier ones.

        States before it that were not scored, as their scoring was interrupted, are scored now, and the next decision
        waits for them. Their checkpoints, and the best one, are taken over from the attempt that has them.
        """
        if not self.every_rounds:
            return
        found: dict[int, RoundScores] = {}
        for work in (self._work, *earlier):
            for each in _read(work / SCORES):
                found.setdefault(each.rounds, each)
        self.scores = sorted((each for each in found.values() if each.rounds <= rounds), key=lambda each: each.rounds)
        missing = [border for border in range(self.every_rounds, rounds, self.every_rounds) if border not in found]
        self._take_over({*missing, *self.kept}, earlier)
        self._due = [border for border in missing if is_whole(self._work, border)]
        for border in sorted({*missing} - {*self._due}):
            self._note(f"the state after round {border} has no scores: its checkpoint was gone before it was scored")
        self.rewind(rounds)
        self._begin_due()

    def _take_over(self, rounds: Collection[int], earlier: Sequence[Path]) -> None:
        for work in earlier:
            for each in sorted(rounds):
                if not is_whole(self._work, each):
                    adopt(self._work, work, each)

    def _begin_due(self) -> None:
        """Begin to score a state that an earlier attempt did not score to its end."""
        if self._running is None and self._due:
            assert self._begin is not None, "whoever asks for scores has something that scores"
            rounds = self._due.pop(0)
            self._running = (rounds, self._begin(checkpoint_folder(self._work, rounds)))

    def rewind(self, rounds: int) -> None:
        """Keep the scores of states up to so many rounds only."""
        if self.every_rounds:
            self.scores = [each for each in self.scores if each.rounds <= rounds]
            self._due = [each for each in self._due if each <= rounds]
            write_text("".join(map(_line, self.scores)), self._work / SCORES)

    def result(self, last: StoredCheckpoint) -> StoredCheckpoint:
        """Return the checkpoint that the training leads to: the last one, or the best with `keep_best`."""
        if not (self._training.keep_best and self.scores) or (found := best(self.scores)).rounds == last.mark.round:
            return last
        try:
            chosen = complete_of(self._work, found.rounds)
        except FleetuneError as error:
            self._note(f"the result is the last state, as the best one, after round {found.rounds}, is lost ({error})")
            return last
        self._note(f"the result is the state after round {found.rounds}, whose held-out loss is the lowest")
        return chosen

    def ask(self, rounds: int) -> None:
        """Have the checkpoint of the state after `rounds` rounds scored; `answer` tells when to go on."""
        self._asked = rounds

    def answer(self) -> Answer | None:
        """Return that the training may go on; None while nothing is asked or the scores before are not there.

        Call it again and again: it takes the scores that have come. After the last round it waits for those of the last
        state.
        """
        self._collect()
        self._begin_due()
        asked, running = self._asked, self._running
        if asked is None:
            return None
        if running is not None and running[0] != asked:
            self._say_waiting(asked, running[0])
            return None
        last = asked >= self._training.rounds
        before = [each for each in self.scores if each.rounds < asked]
        if not last and is_enough(before, self._training.early_stopping_patience):
            self._end_early(asked, before)
            return Answer(asked, enough=True)
        if running is None and not any(each.rounds == asked for each in self.scores):
            assert self._begin is not None, "whoever asks for scores has something that scores"
            self._running = (asked, self._begin(checkpoint_folder(self._work, asked)))
        if last and self._running is not None:
            return None
        self._asked = None
        return Answer(asked, enough=False)

    def close(self) -> None:
        """End what is being scored."""
        if self._running is not None:
            self._running[1].stop()
            self._running = None

    def _collect(self) -> None:
        if self._running is None:
            return
        rounds, scoring = self._running
        values = scoring.result()
        if values is None:
            return
        self._running = None
        found = RoundScores(rounds=rounds, values=values)
        with (self._work / SCORES).open("a", encoding="utf-8") as file:
            file.write(_line(found))
            file.flush()
            os.fsync(file.fileno())
        self.scores = sorted([*self.scores, found], key=lambda each: each.rounds)
        said = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        lowest = " (lowest loss so far)" if best(self.scores) == found else ""
        self._note(f"held-out samples after round {rounds}: {said}{lowest}")

    def _say_waiting(self, asked: int, running: int) -> None:
        """Say once why no round runs."""
        if not self._waited:
            self._note(
                f"round {asked} waits for the scores after round {running}: scoring takes longer than "
                f"{self.every_rounds} rounds, so that a greater training.evaluate_every_rounds trains faster"
            )
        self._waited = True

    def _end_early(self, rounds: int, before: Sequence[RoundScores]) -> None:
        self._asked = None
        self.ended_early = (
            f"ends after round {rounds} of {self._training.rounds}: the held-out loss has not fallen since round "
            f"{best(before).rounds} (training.early_stopping_patience: {self._training.early_stopping_patience})"
        )
        self._note(self.ended_early)


def _read(path: Path) -> list[RoundScores]:
    """Return the scores in a file; a line that was cut off in its middle is none."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json_io.parse(RoundScores, line, str(path)) for line in lines if line.strip()]


def _line(scores: RoundScores) -> str:
    return json.dumps(json_io.dump(scores), allow_nan=False) + "\n"

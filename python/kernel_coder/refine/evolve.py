"""The search ``evolve``: islands of answers, each with an archive from which it draws the parents of its next answers.

A prompt shows one or several parents with their verdicts, the measurements, and a hint. Archives, islands and draws are
computed from the trajectory and the seed, so a search that was stopped can be resumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from kernel_coder.judge import Verdict
from kernel_coder.judge.feedback import bounded
from kernel_coder.prompts import Message, build_feedback
from kernel_coder.refine.archive import Archive, draw_parents, memory_access, number_of_kernels
from kernel_coder.refine.config import RefineConfig
from kernel_coder.refine.search import Question, Search
from kernel_coder.refine.trajectory import Attempt
from kernel_coder.rollout import completion_seed

FRESH_BEFORE_CORRECT = 0.5
"""Share of answers without a parent as long as the island has no correct one, because a second try helps even without
feedback."""

ANSWERS_FOR_EVALUATION = 4
"""Upper limit for the number of answers, as a multiple of the budget in evaluations. A model that repeats itself would
never use up that budget."""

SMALL_SHARE = 0.9
"""Share of the device time in the candidate's own kernels below which the hint is to replace more operators."""

NEAR_PEAK_SHARE = 0.8
"""Share of the roofline from which the hint is that little is left to gain."""


@dataclass
class Evolution(Search):
    """The search ``evolve``; see :class:`kernel_coder.refine.search.Search`."""

    def rounds(self) -> str | None:
        """Runs rounds of ``parallel`` answers, divided among the islands, until a budget is spent."""
        known = self.trajectory.attempts
        limit = self.config.evaluations
        for turn in range(1, self.config.turns + 1):
            self.settle(turn - 1)
            if reason := self.is_enough():
                return reason
            if limit is not None and len(known) >= ANSWERS_FOR_EVALUATION * limit:
                return f"{len(known)} answers gave only {self.trajectory.evaluations} different candidates"
            missing = [sample for sample in range(self.config.parallel) if (turn, sample) not in known]
            if missing:
                self.ask([self._child(turn, sample) for sample in missing])
        return None

    def _child(self, turn: int, sample: int) -> Question:
        random = Random(f"{self.config.seed}/{self.task.id}/{turn}/{sample}")
        parents = self._parents(turn, sample, random)
        messages = tuple(self._prompt(parents, turn, random))
        seed = completion_seed(self.config.seed, self.task.id, turn, sample)
        return Question(turn, sample, messages, seed, tuple(one.key for one in parents))

    def _parents(self, turn: int, sample: int, random: Random) -> list[Attempt]:
        """Return the parents of an answer: elites of its island, and at times the best of another island.

        Once there is a correct answer, all parents are correct. Of 1,879 answers to wrong parents in solved tasks, two
        were faster than the best kernel so far; of 2,675 answers to correct ones, 112 were (docs/search.md).
        """
        config = self.config
        island = sample % config.islands
        earlier = [one for one in self.trajectory.attempts.values() if one.turn < turn]
        pool = members(earlier, config, island, turn)
        correct = [one for one in pool if one.verdict is not None and one.verdict.correct]
        archive = Archive.of(correct or pool, config.axes)
        if random.random() < (config.fresh if correct else max(config.fresh, FRESH_BEFORE_CORRECT)):
            return []
        children = Counter(parent for one in earlier for parent in one.parents)
        # After each prompt that was too long, prompts show one parent less.
        refused = sum(one.refused for one in earlier)
        count = max(config.context_turns - refused, 1)
        return draw_parents(archive, random.randint(1, count), random, novelty=config.novelty, children=dict(children))

    def _prompt(self, parents: list[Attempt], turn: int, random: Random) -> Iterator[Message]:
        begins_answer = self.opening[-1]["role"] == "assistant"
        yield from self.opening[:-1] if parents and begins_answer else self.opening
        for place, parent in enumerate(parents):
            assert parent.verdict is not None, "the archive holds judged answers only"
            last = place + 1 == len(parents)
            facts = {"attempt": parent.turn, "profile": profile(parent.verdict), "last": last}
            reply = build_feedback(
                self.task,
                parent.verdict,
                self.config.feedback_template,
                turn=turn - 1,
                max_turns=self.config.turns,
                hint=hint(parent, random) if last else "",
                **facts,
            )
            yield Message(role="assistant", content=self.shown_text(parent))
            keep_begun = last and self.config.base_url is None
            yield from (message for message in reply if message["role"] != "assistant" or keep_begun)


def members(attempts: list[Attempt], config: RefineConfig, island: int, turn: int) -> list[Attempt]:
    """Return the answers from which an island draws: its own, and the best one of each other island at the last
    migration."""
    before = (turn - 1) // config.migrate_every * config.migrate_every
    own = [one for one in attempts if one.sample % config.islands == island]
    if config.islands == 1 or not before:
        return own
    guests: list[Attempt] = []
    for other in range(config.islands):
        if other != island:
            there = [one for one in attempts if one.sample % config.islands == other and one.turn <= before]
            guests += Archive.of(there, config.axes).elites[:1]
    return own + guests


def profile(verdict: Verdict) -> str:
    """Return the measurements of a correct candidate, one fact in each line; empty if there are none."""
    facts = []
    if verdict.runtime_ms is not None and verdict.reference_ms is not None:
        facts.append(f"time of a call: {verdict.runtime_ms:.4g} ms; of the reference: {verdict.reference_ms:.4g} ms")
    if verdict.kernel_share is not None:
        facts.append(f"share of the device time in your own kernels: {verdict.kernel_share:.0%}")
    if (share := roofline_share(verdict)) is not None:
        facts.append(f"share of the device's roofline: {share:.0%}")
    return bounded("\n".join([*facts, *verdict.kernels.splitlines()]))  # verdict.kernels is text of the candidate


def roofline_share(verdict: Verdict) -> float | None:
    """Return the share of the device's peak that the candidate reaches; None if the judge does not measure it."""
    share = getattr(verdict, "roofline_share", None)
    return float(share) if share is not None else None


def hint(parent: Attempt, random: Random) -> str:
    """Return advice for the next answer from the verdict and source of a correct parent; empty if it is not correct.

    If a bottleneck was measured, the advice is about it. Otherwise a direction is drawn at random, so that the children
    of one parent differ.
    """
    verdict, code = parent.verdict, parent.code or ""
    if verdict is None or not verdict.correct:
        return ""
    share = roofline_share(verdict)
    if verdict.kernel_share is not None and verdict.kernel_share < SMALL_SHARE:
        return "Replace more of the remaining PyTorch operators by your own kernels."
    if any(f"{count} spill" in verdict.kernels for count in range(1, 10)):
        return "Registers spill to memory: use smaller tiles, or more warps for each tile."
    if share is not None and share >= NEAR_PEAK_SHARE:
        return "It is close to what the device can do. Change the algorithm so that it moves fewer bytes."
    ideas = [
        "Try another tile size, and another number of warps.",
        "Load each value from memory once and keep it in registers.",
        "Let each program handle several tiles, so that fewer programs are launched.",
    ]
    if number_of_kernels(code) not in ("0", "1"):
        ideas.append("Fuse the kernels into one, so that intermediate results stay on the chip.")
    if memory_access(code) == "vector":
        ideas.append("Try two-dimensional tiles.")
    return random.choice(ideas)

"""Replays, updates or records the golden histories; see the package."""

from __future__ import annotations

import logging
import sys
from collections import Counter

from tests.model.golden import table
from tests.model.golden.moments import Step
from tests.model.golden.replay import replayed
from tests.model.golden.walks import Walk

WORLDS = 40
"""Histories of simulated worlds with a whole hub, of up to 80 steps each."""
WALKS = 75
"""Histories of one target with every feature, of 60 decisions each."""


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")


def compare(*, update: bool) -> int:
    """Print each step whose outcome differs from the stored one; with ``update``, store today's outcomes."""
    sequences = table.load()
    changed: Counter[str] = Counter()
    new: list[tuple[str, list[Step]]] = []
    for name, steps in sequences:
        outcomes = replayed(step.moment for step in steps)
        fresh = [Step(step.moment, outcome) for step, outcome in zip(steps, outcomes, strict=True)]
        new.append((name, fresh))
        for number, (before, after) in enumerate(zip(steps, fresh, strict=True)):
            if before.outcome == after.outcome:
                continue
            changed[name] += 1
            say(f"{name}, step {number}:")
            for field in before.outcome.__struct_fields__:
                old, now = getattr(before.outcome, field), getattr(after.outcome, field)
                if old != now:
                    say(f"  {field}:\n    was {old}\n    is  {now}")
    total = sum(len(steps) for _, steps in sequences)
    say(f"{changed.total()} of {total} outcomes differ, in {len(changed)} of {len(sequences)} histories")
    if update and changed:
        table.save(new)
    return 1 if changed and not update else 0


def record() -> int:
    """Record all histories again."""
    from tests.model.golden.recorder import world_sequences

    logging.disable()
    sequences = [(f"walk {seed}", list(Walk(seed).steps())) for seed in range(WALKS)]
    worlds = world_sequences(WORLDS, 80)
    sequences += [(f"world {number}", steps) for number, steps in enumerate(worlds)]
    table.save(sequences)
    say(f"{sum(len(steps) for _, steps in sequences)} decisions in {len(sequences)} histories")
    return 0


if __name__ == "__main__":
    what = sys.argv[1:] or ["compare"]
    sys.exit(record() if what == ["record"] else compare(update=what == ["update"]))

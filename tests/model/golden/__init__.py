"""Golden histories of decisions: what one target was told, step by step, and what was decided.

``tests/data/golden.json.xz`` holds sequences of steps. A step has the inputs of one decision and its outcome. Nothing
the code remembers between two decisions is part of the data, so the file stays valid when the code changes shape:
only :mod:`tests.model.golden.replay` knows how to ask the code of today.

    python -m tests.model.golden            replay, and print the differences
    python -m tests.model.golden update     replay, and store today's outcomes for the steps that differ
    python -m tests.model.golden record     record all histories again
"""

"""Golden histories of decisions: the inputs of decisions about one target, and their outcomes.

``tests/data/golden.json.xz`` holds sequences of steps. A step has the inputs of one decision and its outcome. The data
has nothing that the code remembers between decisions, so the file stays valid when the code is restructured: only
:mod:`tests.model.golden.replay` depends on the code's structure.

    python -m tests.model.golden            replay, and print the differences
    python -m tests.model.golden update     replay, and store today's outcomes for the steps that differ
    python -m tests.model.golden record     record all histories again
"""

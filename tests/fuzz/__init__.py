"""Fuzzing of all input of the hub: ``python -m tests.fuzz`` or ``make fuzz``; docs/bad-input.md has the results."""

"""Fuzzing of everything the hub reads: ``python -m tests.fuzz`` or ``make fuzz``; docs/bad-input.md has the figures."""

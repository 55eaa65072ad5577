"""All tests in two processes side by side: those on API servers mostly wait, the others need a processor.

``make test`` calls it; its arguments are pytest's. What the second process says is printed when the first is done.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Final

PYTEST: Final = (sys.executable, "-m", "pytest")
NO_TESTS: Final = 5
"""pytest's exit code where it has selected none."""


def main(arguments: Sequence[str]) -> int:
    """Run both; the exit code of what failed first, 0 = all passed."""
    with tempfile.TemporaryFile() as said:
        # What the arguments are is up to whoever calls make.
        alone = [*PYTEST, "-m", "not apiserver", *arguments]
        others = subprocess.Popen(alone, stdout=said, stderr=subprocess.STDOUT)  # noqa: S603
        try:
            first = subprocess.run([*PYTEST, "-m", "apiserver", *arguments], check=False).returncode  # noqa: S603
            second = others.wait()
        finally:
            others.kill()
        said.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(b"\nThe tests that need no API server:\n" + said.read())
    codes = [code for code in (first, second) if code != NO_TESTS]
    return next((code for code in codes if code), 0) if codes else NO_TESTS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

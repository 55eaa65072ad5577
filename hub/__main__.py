"""``python -m hub``."""

from hub.cli import main

if __name__ == "__main__":
    main()

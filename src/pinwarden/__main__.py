"""``python -m pinwarden``."""

import sys

from pinwarden.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

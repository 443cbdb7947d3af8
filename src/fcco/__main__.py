"""``python -m fcco``."""

import sys

from fcco.cli import main

if __name__ == "__main__":
    sys.exit(main())

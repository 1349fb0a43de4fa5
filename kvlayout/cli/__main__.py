"""``python -m kvlayout.cli``: the same as the command ``kvlayout``."""

import sys

from kvlayout.cli import main

if __name__ == "__main__":
    sys.exit(main())

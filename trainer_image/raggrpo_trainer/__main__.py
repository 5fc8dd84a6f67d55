"""`python -m raggrpo_trainer`: runs one attempt."""

import sys

from .driver import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m raggrpo_trainer`: runs one attempt."""

import sys

from raggrpo_trainer.driver.attempt import main

if __name__ == "__main__":
    sys.exit(main())

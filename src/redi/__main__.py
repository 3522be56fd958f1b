"""``python -m redi`` and ``torchrun -m redi``."""

from redi.cli import main

main()

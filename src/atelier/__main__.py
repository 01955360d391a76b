"""`python -m atelier`: the command line without its script."""

from atelier.cli import main

main()

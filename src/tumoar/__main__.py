"""`python -m tumoar`."""

from tumoar.cli import main

main()

"""`python -m tumoar`."""

from tumoar.cli import main

if __name__ == "__main__":  # a worker process of `tumoar cohort` imports this again
    main()

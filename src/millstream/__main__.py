"""`python -m millstream`: the same as the `millstream` command."""

from millstream.server.main import main

if __name__ == "__main__":
    main()

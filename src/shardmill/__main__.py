"""``python -m shardmill`` is the command line too."""

from shardmill.cli import main

if __name__ == "__main__":
    main()

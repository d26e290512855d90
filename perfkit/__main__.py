"""``python -m perfkit`` is ``perfkit``."""

from perfkit.cli.app import main

if __name__ == "__main__":
    main()

"""`python -m isentrope`: the command line."""

from isentrope.cli.frame import main

if __name__ == "__main__":
    main(prog_name="isentrope")

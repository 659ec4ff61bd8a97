"""`python -m peaccel`, and `torchrun ... -m peaccel`: the command line by module name."""

from peaccel.cli import main

main()

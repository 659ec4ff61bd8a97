"""A command of peaccel as a shell sees it, within this process."""

from peaccel import cli


def run(capsys, *words):
    """Its exit code, stdout and stderr; words may hold several, parted by spaces."""
    code = 0
    try:
        cli.main(" ".join(words).split())
    except SystemExit as stop:
        code = stop.code or 0
    return code, *capsys.readouterr()

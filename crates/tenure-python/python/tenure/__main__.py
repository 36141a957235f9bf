"""The command ``tenure``, which the wheel brings: ``python -m tenure run script.py``."""

import os
import pathlib
import shutil
import sys
from typing import NoReturn

_FOLDER = pathlib.Path(__file__).parent / "_bin"


def main() -> NoReturn:
    """Run the command, in place of this interpreter."""
    command = _FOLDER / "tenure"
    if command.exists():
        path = str(command)
    else:
        found = shutil.which("tenure")
        if found is None or pathlib.Path(found).resolve() == pathlib.Path(sys.argv[0]).resolve():
            sys.exit("tenure: the command is not in this build of the package, and not installed")
        path = found
    arguments = sys.argv[1:]
    # `python -m tenure run script.py` runs the script in this interpreter.
    if arguments[:1] == ["run"]:
        for place, argument in enumerate(arguments[1:], 1):
            if argument == "--":
                break
            if not argument.startswith("-"):
                if argument.endswith(".py"):
                    arguments[place:place] = ["--", sys.executable]
                break
    os.execv(path, ["tenure", *arguments])


if __name__ == "__main__":
    main()

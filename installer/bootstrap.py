"""The one command of a fresh clone: `python3 installer/bootstrap.py setup|run|test` (Windows: `py -3 ...`).

Owns the check of the Python version and nothing else; `installer/commands.py` does the work. The syntax here
stays readable to every Python since 2.7, so that an old one answers with a sentence and not with a SyntaxError.
"""

import os
import sys

OLDEST = (3, 11)
NEWEST = (3, 13)

if not OLDEST <= tuple(sys.version_info[:2]) <= NEWEST:
    sys.stderr.write(
        "Inglenook needs Python 3.11, 3.12 or 3.13, and this is Python %d.%d. "
        "Install one of those and start this file with it, for example: python3.12 installer/bootstrap.py run\n"
        % tuple(sys.version_info[:2])
    )
    sys.exit(1)

if __name__ == "__main__":
    # The folder of a script is first on the path; the packages lie one folder up.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from installer.commands import main

    sys.exit(main(sys.argv[1:]))
